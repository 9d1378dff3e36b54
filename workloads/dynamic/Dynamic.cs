using System;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// DynamicMethods: made, run a few times, and left to the garbage
    /// collector, which frees their code for the next ones. With "kept" one is there
    /// all the time; with "passing" each is gone before the next comes, which has
    /// another name and the same memory.
    /// </summary>
    public static class Dynamic
    {
        private delegate int Burn(int x, int n);

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            Console.WriteLine("method DynamicMethod DynamicBurn");
            long made = 0;
            // One method for the program's life, which is there before who comes later.
            bool passing = Array.IndexOf(args, "passing") >= 0;
            Burn kept = Array.IndexOf(args, "kept") >= 0 ? Make(1664525) : null;
            while (run.More())
            {
                if (kept != null)
                {
                    check.Add(kept(1, 400_000));
                    continue;
                }
                if (passing)
                {
                    long even = EvenRound();
                    Collect();
                    check.Add(even * 31 + OddRound());
                    Collect();
                    made += 2;
                    continue;
                }
                check.Add(DynamicRound());
                made += 4;
                if (made % 64 == 0)
                {
                    Collect();
                }
            }
            check.Print();
            Run.Measured("methods", made);
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long DynamicRound()
        {
            long sum = 0;
            for (int i = 0; i < 4; i++)
            {
                Burn burn = Make(1664525 + 2 * i);
                for (int j = 0; j < 5; j++)
                {
                    sum = sum * 31 + burn(j, 100_000);
                }
            }
            return sum;
        }

        private static void Collect()
        {
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long EvenRound() => Make(1664525, "EvenBurn")(1, 3_000_000);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long OddRound() => Make(1664527, "OddBurn")(1, 3_000_000);

        /// <summary>x = x * factor + 1, n times.</summary>
        private static Burn Make(int factor, string name = "DynamicBurn")
        {
            var method = new DynamicMethod(name, typeof(int), new[] { typeof(int), typeof(int) }, typeof(Dynamic).Module);
            ILGenerator il = method.GetILGenerator();
            Label test = il.DefineLabel();
            Label body = il.DefineLabel();
            il.Emit(OpCodes.Br, test);
            il.MarkLabel(body);
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Ldc_I4, factor);
            il.Emit(OpCodes.Mul);
            il.Emit(OpCodes.Ldc_I4_1);
            il.Emit(OpCodes.Add);
            il.Emit(OpCodes.Starg_S, (byte)0);
            il.Emit(OpCodes.Ldarg_1);
            il.Emit(OpCodes.Ldc_I4_1);
            il.Emit(OpCodes.Sub);
            il.Emit(OpCodes.Starg_S, (byte)1);
            il.MarkLabel(test);
            il.Emit(OpCodes.Ldarg_1);
            il.Emit(OpCodes.Ldc_I4_0);
            il.Emit(OpCodes.Bgt, body);
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Ret);
            return (Burn)method.CreateDelegate(typeof(Burn));
        }
    }
}
