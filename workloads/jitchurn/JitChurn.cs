using System;
using System.Collections.Generic;
using System.IO;
using System.Linq.Expressions;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.Loader;
using System.Text.RegularExpressions;

namespace Workloads
{
    /// <summary>
    /// Code that is made while the program runs: expression trees,
    /// DynamicMethods, compiled regular expressions, instances of generics over
    /// new types, assemblies in collectible load contexts. With only=KIND one
    /// of them: expressions, dynamic, regex, generics, contexts.
    /// </summary>
    public static class JitChurn
    {
        private static readonly (string Name, Func<int, long> Burn)[] Kinds =
        {
            ("expressions", Expressions),
            ("dynamic", DynamicMethods),
            ("regex", Regexes),
            ("generics", Generics),
            ("contexts", Contexts),
        };

        public static int Main(string[] args)
        {
            string only = "";
            foreach (string arg in args)
            {
                if (arg.StartsWith("only=", StringComparison.Ordinal))
                {
                    only = arg.Substring(5);
                }
            }
            var run = new Run(args);
            var checks = new Dictionary<string, Checked>();
            long made = 0;
            while (run.More())
            {
                foreach (var (name, burn) in Kinds)
                {
                    if (only.Length > 0 && only != name)
                    {
                        continue;
                    }
                    if (!checks.TryGetValue(name, out Checked check))
                    {
                        checks[name] = check = new Checked(name);
                    }
                    check.Add(burn(10));
                    made += 10;
                }
            }
            foreach (var check in checks.Values)
            {
                check.Print();
            }
            Run.Measured("made", made);
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Expressions(int count)
        {
            long sum = 0;
            for (int i = 0; i < count; i++)
            {
                ParameterExpression x = Expression.Parameter(typeof(long), "x");
                Expression body = x;
                for (int depth = 0; depth < 12; depth++)
                {
                    body = Expression.Add(Expression.Multiply(body, Expression.Constant(31L + i)), Expression.Constant((long)depth));
                }
                Func<long, long> compiled = Expression.Lambda<Func<long, long>>(body, x).Compile();
                sum = sum * 31 + compiled(i);
            }
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long DynamicMethods(int count)
        {
            long sum = 0;
            for (int i = 0; i < count; i++)
            {
                var method = new DynamicMethod("ChurnDynamic", typeof(long), new[] { typeof(long) }, typeof(JitChurn).Module);
                ILGenerator il = method.GetILGenerator();
                il.Emit(OpCodes.Ldarg_0);
                for (int step = 0; step < 12; step++)
                {
                    il.Emit(OpCodes.Ldc_I8, 31L + i + step);
                    il.Emit(step % 2 == 0 ? OpCodes.Mul : OpCodes.Add);
                }
                il.Emit(OpCodes.Ret);
                var compiled = (Func<long, long>)method.CreateDelegate(typeof(Func<long, long>));
                sum = sum * 31 + compiled(i + 1);
            }
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Regexes(int count)
        {
            long sum = 0;
            for (int i = 0; i < count; i++)
            {
                var regex = new Regex(@"(?<key>[a-z]+" + i + @")\s*=\s*(?<value>\d{1," + (i + 2) + @"}|""[^""]*"")(;|$)", RegexOptions.Compiled);
                foreach (Match match in regex.Matches("alpha" + i + " = 12; beta" + i + "=\"text\"; other=1; gamma" + i + "=345"))
                {
                    sum = sum * 31 + match.Index + match.Groups["value"].Length;
                }
            }
            return sum;
        }

        private struct Nest<T>
        {
            public T Value;
            public long Count;
        }

        /// <summary>Work over a type that no code has been made for yet.</summary>
        public static long Deepen<T>(int depth)
        {
            var list = new List<T> { default(T), default(T) };
            long size = Unsafe<T>.Size(list.ToArray());
            return depth == 0 ? size : size + 31 * Deepen<(T, int)>(depth - 1);
        }

        private static class Unsafe<T>
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public static long Size(T[] array) => array.Length + typeof(T).GenericTypeArguments.Length;
        }

        private static int fresh;

        /// <summary>Value types made by Reflection.Emit: each gets its own instances of the generics.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Generics(int count)
        {
            AssemblyBuilder assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("Fresh" + fresh++), AssemblyBuilderAccess.Run);
            ModuleBuilder module = assembly.DefineDynamicModule("Fresh");
            MethodInfo deepen = typeof(JitChurn).GetMethod(nameof(Deepen));
            long sum = 0;
            for (int i = 0; i < count; i++)
            {
                TypeBuilder type = module.DefineType("Value" + i, TypeAttributes.Public | TypeAttributes.Sealed, typeof(ValueType));
                type.DefineField("X", typeof(long), FieldAttributes.Public);
                Type made = type.CreateTypeInfo().AsType();
                sum = sum * 31 + (long)deepen.MakeGenericMethod(made).Invoke(null, new object[] { 2 });
            }
            return sum;
        }

        private sealed class Context : AssemblyLoadContext
        {
            public Context()
                : base(isCollectible: true)
            {
            }

            protected override Assembly Load(AssemblyName name) => null;
        }

        private static readonly byte[] Self = File.ReadAllBytes(typeof(JitChurn).Assembly.Location);

        /// <summary>Run inside a collectible context, in another copy of this assembly.</summary>
        public static long Inside(int number) => number * 31 + new Nest<int> { Value = number, Count = 7 }.Count;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Contexts(int count)
        {
            long sum = 0;
            for (int i = 0; i < count; i++)
            {
                var context = new Context();
                Assembly copy = context.LoadFromStream(new MemoryStream(Self));
                MethodInfo inside = copy.GetType(typeof(JitChurn).FullName).GetMethod(nameof(Inside));
                sum = sum * 31 + (long)inside.Invoke(null, new object[] { i });
                context.Unload();
            }
            return sum;
        }
    }
}
