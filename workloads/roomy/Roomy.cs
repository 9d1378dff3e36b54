using System;
using System.Runtime.CompilerServices;

namespace System.Runtime.CompilerServices
{
    /// <summary>Known to the compiler by its name; .NET Core 3.1 has none.</summary>
    [AttributeUsage(AttributeTargets.Method)]
    internal sealed class SkipLocalsInitAttribute : Attribute
    {
    }
}

namespace Workloads
{
    /// <summary>
    /// Methods with frames of 1 to 200 KiB that do next to nothing else: their
    /// time goes into prologues, which touch each page of the new frame. One
    /// caller each, as in `frameless`; `Eager` are optimised before their
    /// first call. Prints each pair as `caller CALLEE CALLER`.
    /// </summary>
    public static unsafe class Roomy
    {
        private const int Calls = 4_000;

        private struct OneKib { public fixed byte Bytes[1 << 10]; }

        private struct FourKib { public fixed byte Bytes[4 << 10]; }

        private struct NineKib { public fixed byte Bytes[9 << 10]; }

        private struct TwentyKib { public fixed byte Bytes[20 << 10]; }

        private struct TwoHundredKib { public fixed byte Bytes[200 << 10]; }

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var sum = new Checked("checksum");
            foreach (string how in new[] { "", "Eager" })
            {
                Pair("One" + how, "Four" + how);
                Pair("Four" + how, "Nine" + how);
                Pair("Nine" + how, "Twenty" + how);
                Pair("Twenty" + how, "TwoHundred" + how);
                Pair("TwoHundred" + how, "RoomyRound");
            }
            while (run.More())
            {
                sum.Add(RoomyRound());
            }
            sum.Print();
            run.End();
            return 0;
        }

        private static void Pair(string callee, string caller)
        {
            Console.WriteLine("caller Workloads.Roomy." + callee + " Workloads.Roomy." + caller);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long RoomyRound()
        {
            long sum = 0;
            for (int i = 0; i < Calls; i++)
            {
                sum = sum * 31 + TwoHundred(i) + TwoHundredEager(i);
            }
            return sum;
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int TwoHundred(int x)
        {
            TwoHundredKib room;
            room.Bytes[x & 255] = (byte)x;
            return Twenty(x + 1) + room.Bytes[x & 255];
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Twenty(int x)
        {
            TwentyKib room;
            room.Bytes[x & 255] = (byte)x;
            return Nine(x + 1) + room.Bytes[x & 255];
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Nine(int x)
        {
            NineKib room;
            room.Bytes[x & 255] = (byte)x;
            return Four(x + 1) + room.Bytes[x & 255];
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Four(int x)
        {
            FourKib room;
            room.Bytes[x & 255] = (byte)x;
            return One(x + 1) + room.Bytes[x & 255];
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int One(int x)
        {
            OneKib room;
            room.Bytes[x & 255] = (byte)x;
            return room.Bytes[x & 255] + 1;
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int TwoHundredEager(int x)
        {
            TwoHundredKib room;
            room.Bytes[x & 255] = (byte)x;
            return TwentyEager(x + 1) + room.Bytes[x & 255];
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int TwentyEager(int x)
        {
            TwentyKib room;
            room.Bytes[x & 255] = (byte)x;
            return NineEager(x + 1) + room.Bytes[x & 255];
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int NineEager(int x)
        {
            NineKib room;
            room.Bytes[x & 255] = (byte)x;
            return FourEager(x + 1) + room.Bytes[x & 255];
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int FourEager(int x)
        {
            FourKib room;
            room.Bytes[x & 255] = (byte)x;
            return OneEager(x + 1) + room.Bytes[x & 255];
        }

        [SkipLocalsInit]
        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int OneEager(int x)
        {
            OneKib room;
            room.Bytes[x & 255] = (byte)x;
            return room.Bytes[x & 255] + 1;
        }
    }
}
