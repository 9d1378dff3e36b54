using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Threads that are made, joined and gone: one after the other, with next
    /// to nothing to do. A round is 50 of them. With "burning" each burns for
    /// some ten microseconds, every other one twice as long in another method.
    /// </summary>
    public static class ThreadChurn
    {
        private const int Threads = 50;
        private static long sum;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("sum");
            Console.WriteLine("method ThreadChurn ShortLife");
            bool burning = Array.IndexOf(args, "burning") >= 0;
            long made = 0;
            while (run.More())
            {
                sum = 0;
                for (int i = 0; i < Threads; i++)
                {
                    int number = i;
                    var thread = new Thread(() => Live(number, burning), 256 * 1024);
                    thread.Start();
                    thread.Join();
                }
                made += Threads;
                check.Add(sum);
            }
            check.Print();
            Run.Measured("threads", made);
            run.End();
            return 0;
        }

        private static void Live(int number, bool burning)
        {
            if (!burning)
            {
                ShortLife(number);
            }
            else if (number % 2 == 0)
            {
                BurnOnce(8_000);
            }
            else
            {
                BurnTwice(16_000);
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void BurnOnce(int n)
        {
            for (int i = 0; i < n; i++)
            {
                sum = sum * 31 + 1;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void BurnTwice(int n)
        {
            for (int i = 0; i < n; i++)
            {
                sum = sum * 37 + 1;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void ShortLife(int number)
        {
            sum = sum * 31 + number;
        }
    }
}
