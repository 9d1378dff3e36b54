using System;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// One method in which three lines burn. It measures each by the thread's
    /// CPU clock and prints `line FILE:LINE PERCENT` of the method's time.
    /// </summary>
    public static class Lines
    {
        private static readonly int[] Numbers = new int[3];
        private static readonly long[] Spent = new long[3];

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            while (run.More())
            {
                check.Add(BurnOnThreeLines());
            }
            double total = Spent[0] + Spent[1] + Spent[2];
            for (int i = 0; i < 3; i++)
            {
                Console.WriteLine(string.Format(
                    System.Globalization.CultureInfo.InvariantCulture, "line Lines.cs:{0} {1:F3}", Numbers[i], Spent[i] * 100 / total));
            }
            check.Print();
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint BurnOnThreeLines()
        {
            uint x = 1;
            long start = Clock.ThreadCpu();
            Numbers[0] = Next(); // the line after this one burns
            for (int i = 0; i < 1_200_000; i++) { x = x * 1664525 + 1013904223; x ^= x >> 13; }
            long first = Clock.ThreadCpu();
            Numbers[1] = Next();
            for (int i = 0; i < 600_000; i++) { x = x * 22695477 + 1; x ^= x >> 15; }
            long second = Clock.ThreadCpu();
            Numbers[2] = Next();
            for (int i = 0; i < 200_000; i++) { x = x * 69069 + 12345; x ^= x >> 11; }
            long third = Clock.ThreadCpu();
            Spent[0] += first - start;
            Spent[1] += second - first;
            Spent[2] += third - second;
            return x;
        }

        private static int Next([CallerLineNumber] int line = 0) => line + 1;
    }
}
