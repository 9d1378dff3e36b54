using System;
using System.Collections.Generic;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Async methods that stay suspended until the end, so many of each (`suspended METHOD COUNT`), and exceptions that leave
    /// others after they were resumed (`thrown MESSAGE COUNT`): passed on, thrown again, replaced by another one, and kept in a task that
    /// nobody awaits. Of all of them `calls METHOD COUNT`.
    /// </summary>
    public static class Suspended
    {
        private const int Chains = 200_000;
        private const int Rounds = 100;

        private sealed class Expected : Exception
        {
            public Expected(string message) : base(message)
            {
            }
        }

        private static readonly TaskCompletionSource<int> Gate =
            new TaskCompletionSource<int>(TaskCreationOptions.RunContinuationsAsynchronously);
        private static long caught;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var all = new List<Task<long>>(Chains);
            for (int i = 0; i < Chains; i++)
            {
                all.Add(Outer(i));
            }
            foreach (string method in new[] { "Outer", "Middle", "Inner" })
            {
                Console.WriteLine("suspended Workloads.Suspended." + method + " " + Chains);
            }
            Catches().GetAwaiter().GetResult();
            foreach (string message in new[] { "passed on", "again", "replaced", "other", "kept" })
            {
                Console.WriteLine("thrown " + message.Replace(' ', '-') + " " + Rounds);
            }
            foreach (string method in new[] { "Outer", "Middle", "Inner" })
            {
                Console.WriteLine("calls Workloads.Suspended." + method + " " + Chains);
            }
            foreach (string method in new[] { "Passes", "ThrowsAgain", "Replaces" })
            {
                Console.WriteLine("calls Workloads.Suspended." + method + " " + Rounds);
            }
            Console.WriteLine("calls Workloads.Suspended.Throws " + 4 * Rounds);
            Console.WriteLine("calls Workloads.Suspended.Catches 1");
            GC.Collect();
            Gate.SetResult(1);
            long sum = caught;
            foreach (var one in all)
            {
                sum += one.GetAwaiter().GetResult();
            }
            Run.Result("sum", sum.ToString(CultureInfo.InvariantCulture));
            run.End();
            return 0;
        }

        private static async Task<long> Outer(int i)
        {
            long twice = i * 2L;
            return await Middle(i) + twice;
        }

        private static async Task<int> Middle(int i)
        {
            string text = "x";
            return await Inner(i) + text.Length;
        }

        private static async Task<int> Inner(int i)
        {
            return await Gate.Task + i;
        }

        /// <summary>On a thread of the pool from its first round on.</summary>
        private static async Task Catches()
        {
            for (int i = 0; i < Rounds; i++)
            {
                try
                {
                    await Passes("passed on");
                }
                catch (Expected)
                {
                    caught++;
                }
                try
                {
                    await ThrowsAgain("again");
                }
                catch (Expected)
                {
                    caught++;
                }
                try
                {
                    await Replaces("replaced");
                }
                catch (InvalidOperationException)
                {
                    caught++;
                }
                Task kept = Throws("kept");
                while (!kept.IsCompleted)
                {
                    await Task.Yield();
                }
                caught += kept.Exception.InnerExceptions.Count;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static async Task<int> Throws(string message)
        {
            await Task.Yield();
            if (message.Length > 0)
            {
                throw new Expected(message);
            }
            return 1;
        }

        private static async Task<int> Passes(string message)
        {
            try
            {
                return await Throws(message);
            }
            finally
            {
                caught++;
            }
        }

        private static async Task<int> ThrowsAgain(string message)
        {
            try
            {
                return await Throws(message);
            }
            catch (Expected)
            {
                throw;
            }
        }

        private static async Task<int> Replaces(string message)
        {
            try
            {
                return await Throws(message);
            }
            catch (Expected expected)
            {
                throw new InvalidOperationException("other", expected);
            }
        }
    }
}
