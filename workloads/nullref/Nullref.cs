using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// NullReferenceExceptions and DivideByZeroExceptions, which the runtime
    /// makes from SIGSEGV and SIGFPE. With `thread` on a thread that it starts.
    /// </summary>
    public static class Nullref
    {
        private sealed class Holder
        {
            public int Value = 1;
        }

        private static readonly Holder[] Holders = { new Holder(), null, new Holder { Value = 5 }, null };

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            Console.WriteLine("method Workloads.Nullref.ReadHolder");
            long caught = 0;
            run.Meet("start");
            ThreadStart rounds = () =>
            {
                while (run.More())
                {
                    check.Add(NullrefRound());
                    caught += 15;
                }
            };
            if (Array.IndexOf(args, "thread") >= 0)
            {
                var thread = new Thread(rounds);
                thread.Start();
                thread.Join();
            }
            else
            {
                rounds();
            }
            check.Print();
            Run.Measured("caught", caught);
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long NullrefRound()
        {
            long sum = 1;
            for (int i = 0; i < 20; i++)
            {
                try
                {
                    sum = sum * 31 + ReadHolder(Holders[i & 3]);
                }
                catch (NullReferenceException)
                {
                    sum = sum * 37 + 1;
                }
            }
            for (int i = 0; i < 5; i++)
            {
                try
                {
                    sum = sum * 41 + Divide(i, 0);
                }
                catch (DivideByZeroException)
                {
                    sum = sum * 43 + 1;
                }
            }
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int ReadHolder(Holder holder)
        {
            return holder.Value;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Divide(int a, int b)
        {
            return a / b;
        }
    }
}
