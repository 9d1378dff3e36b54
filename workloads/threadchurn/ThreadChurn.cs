using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Threads that are made, joined and gone: one after the other, with next
    /// to nothing to do. A round is 50 of them.
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
            long made = 0;
            while (run.More())
            {
                sum = 0;
                for (int i = 0; i < Threads; i++)
                {
                    int number = i;
                    var thread = new Thread(() => ShortLife(number), 256 * 1024);
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

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void ShortLife(int number)
        {
            sum = sum * 31 + number;
        }
    }
}
