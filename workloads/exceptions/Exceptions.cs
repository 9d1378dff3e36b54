using System;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// Throws and catches all the time: through frames, filters and finally
    /// blocks, rethrown, and from within a catch block.
    /// </summary>
    public static class Exceptions
    {
        private sealed class Expected : Exception
        {
            public readonly int Value;

            public Expected(int value) : base("expected")
            {
                Value = value;
            }
        }

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            Console.WriteLine("method Workloads.Exceptions.ThrowDeep");
            long thrown = 0;
            while (run.More())
            {
                check.Add(ExceptionsRound());
                thrown += 4 * 20;
            }
            check.Print();
            Run.Measured("thrown", thrown);
            run.End();
            if (Array.IndexOf(args, "crash") >= 0)
            {
                EndByException();
            }
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void EndByException()
        {
            throw new InvalidOperationException("the last one");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long ExceptionsRound()
        {
            long sum = 1;
            for (int i = 0; i < 20; i++)
            {
                sum = sum * 31 + CatchDeep(i);
                sum = sum * 31 + CatchFiltered(i);
                sum = sum * 31 + CatchRethrown(i);
            }
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int CatchDeep(int i)
        {
            int before = i;
            try
            {
                return ThrowDeep(10, i);
            }
            catch (Expected e)
            {
                return e.Value * 7 + before;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int ThrowDeep(int depth, int i)
        {
            if (depth == 0)
            {
                throw new Expected(i);
            }
            return ThrowDeep(depth - 1, i) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int CatchFiltered(int i)
        {
            int finallies = 0;
            try
            {
                try
                {
                    return ThrowDeep(3, i);
                }
                catch (Expected e) when (e.Value < 0)
                {
                    return -1;
                }
                finally
                {
                    finallies++;
                }
            }
            catch (Expected e) when (e.Value == i)
            {
                return finallies * 100 + i;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int CatchRethrown(int i)
        {
            try
            {
                try
                {
                    return ThrowDeep(2, i);
                }
                catch (Expected)
                {
                    throw;
                }
            }
            catch (Exception e)
            {
                return e is Expected expected ? expected.Value + 11 : -1;
            }
        }
    }
}
