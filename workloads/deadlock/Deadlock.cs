using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Two threads that each hold one lock and wait for the other's, for good;
    /// three that wait for the same event, one that sleeps; main sleeps until
    /// its time is over. Prints `holds THREAD METHOD` of the two, `waits THREAD
    /// METHOD` of the others, and `ready` once it is so.
    /// </summary>
    public static class Deadlock
    {
        private static readonly object Left = new object();
        private static readonly object Right = new object();
        private static readonly CountdownEvent Both = new CountdownEvent(2);
        private static readonly ManualResetEvent Never = new ManualResetEvent(false);

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            var first = Start("left-first", LeftThenRight);
            var second = Start("right-first", RightThenLeft);
            Start("sleeper", Sleep);
            for (int i = 0; i < 3; i++)
            {
                Start("idle-" + i, WaitForNothing);
            }
            Both.Wait();
            while (!Waits(first) || !Waits(second))
            {
                Thread.Yield();
            }
            Console.WriteLine("holds left-first Workloads.Deadlock.LeftThenRight");
            Console.WriteLine("holds right-first Workloads.Deadlock.RightThenLeft");
            Console.WriteLine("waits sleeper Workloads.Deadlock.Sleep");
            Console.WriteLine("waits idle-0 Workloads.Deadlock.WaitForNothing");
            Console.WriteLine("ready");
            while (run.More())
            {
                check.Add(Monitor.TryEnter(Left) ? 1 : 2);
                Thread.Sleep(10);
            }
            check.Print();
            run.End();
            return 0;
        }

        private static bool Waits(Thread thread)
        {
            return (thread.ThreadState & ThreadState.WaitSleepJoin) != 0;
        }

        private static Thread Start(string name, ThreadStart body)
        {
            // In the background: the process ends although they do not.
            var thread = new Thread(body) { Name = name, IsBackground = true };
            thread.Start();
            return thread;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void LeftThenRight()
        {
            lock (Left)
            {
                Both.Signal();
                Both.Wait();
                lock (Right)
                {
                    Console.WriteLine("no deadlock");
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void RightThenLeft()
        {
            lock (Right)
            {
                Both.Signal();
                Both.Wait();
                lock (Left)
                {
                    Console.WriteLine("no deadlock");
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Sleep()
        {
            Thread.Sleep(Timeout.Infinite);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitForNothing()
        {
            Never.WaitOne();
        }
    }
}
