using System;
using System.Diagnostics;
using System.Globalization;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// Thousands of methods, each compiled (methods=N), and then a thread that
    /// looks at the clock without end: for who comes to a program that has run
    /// for long. Prints the longest time between two looks.
    /// </summary>
    public static class ManyMethods
    {
        private const int OfAType = 1000;
        private static long longest;

        public static int Main(string[] args)
        {
            int count = 1000;
            foreach (string arg in args)
            {
                if (arg.StartsWith("methods=", StringComparison.Ordinal))
                {
                    count = int.Parse(arg.Substring(8), CultureInfo.InvariantCulture);
                }
            }
            long sum = CompileAll(count);
            var run = new Run(args);
            while (run.More())
            {
                LookAtTheClock();
            }
            Run.Result("sum", sum);
            Run.Measured("methods", count);
            Run.Measured("longest_gap_us", longest * 1_000_000 / Stopwatch.Frequency);
            run.End();
            return 0;
        }

        private static long CompileAll(int count)
        {
            AssemblyBuilder assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("many"), AssemblyBuilderAccess.Run);
            ModuleBuilder module = assembly.DefineDynamicModule("many");
            long sum = 0;
            for (int first = 0; first < count; first += OfAType)
            {
                TypeBuilder type = module.DefineType("Many.Type" + (first / OfAType), TypeAttributes.Public);
                int last = Math.Min(count, first + OfAType);
                for (int i = first; i < last; i++)
                {
                    MethodBuilder method = type.DefineMethod(
                        "Method" + i, MethodAttributes.Public | MethodAttributes.Static, typeof(int), new[] { typeof(int) });
                    ILGenerator il = method.GetILGenerator();
                    il.Emit(OpCodes.Ldarg_0);
                    il.Emit(OpCodes.Ldc_I4, i);
                    il.Emit(OpCodes.Xor);
                    il.Emit(OpCodes.Ret);
                }
                foreach (MethodInfo method in type.CreateTypeInfo().GetMethods(BindingFlags.Public | BindingFlags.Static))
                {
                    sum += ((Func<int, int>)Delegate.CreateDelegate(typeof(Func<int, int>), method))(first);
                }
            }
            return sum;
        }

        /// <summary>For ten milliseconds.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void LookAtTheClock()
        {
            long start = Stopwatch.GetTimestamp();
            long end = start + Stopwatch.Frequency / 100;
            long before = start;
            while (before < end)
            {
                long now = Stopwatch.GetTimestamp();
                longest = Math.Max(longest, now - before);
                before = now;
            }
        }
    }
}
