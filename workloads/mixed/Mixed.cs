using System;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Workloads
{
    /// <summary>
    /// The stack of every profiler article: unmanaged, D, unmanaged, C, B,
    /// unmanaged, A, Main. A and C call qsort of libc, which calls B and D back;
    /// D burns, in managed code and in memcmp of libc.
    /// Prints the stack, leaf first, as `stack FRAME…`.
    /// </summary>
    public static unsafe class Mixed
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate int Comparer(int* a, int* b);

        [DllImport("libc", EntryPoint = "qsort")]
        private static extern void QSort(int* items, UIntPtr count, UIntPtr size, Comparer comparer);

        [DllImport("libc", EntryPoint = "memcmp")]
        private static extern int MemCmp(byte* a, byte* b, UIntPtr count);

        private const int Length = 1 << 16;
        private static readonly Comparer Outer = B;
        private static readonly Comparer Inner = D;
        private static byte* left;
        private static byte* right;
        private static long sum;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            // From .NET 11 on the code that calls qsort is QSort's own; before it is a stub.
            string called = Environment.Version.Major >= 11 ? "unmanaged Workloads.Mixed.QSort" : "unmanaged";
            Console.WriteLine("stack unmanaged? Workloads.Mixed.D " + called + " Workloads.Mixed.C Workloads.Mixed.B "
                + called + " Workloads.Mixed.A Workloads.Mixed.Main");
            left = (byte*)Marshal.AllocHGlobal(Length);
            right = (byte*)Marshal.AllocHGlobal(Length);
            for (int i = 0; i < Length; i++)
            {
                left[i] = right[i] = (byte)(i * 7);
            }
            while (run.More())
            {
                check.Add(A());
            }
            check.Print();
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long A()
        {
            sum = 0;
            int* items = stackalloc int[3] { 3, 1, 2 };
            QSort(items, (UIntPtr)3u, (UIntPtr)4u, Outer);
            return sum + items[0] + items[1] * 10 + items[2] * 100;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int B(int* a, int* b)
        {
            int order = C(*a, *b);
            sum = sum * 31 + order;
            return order;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int C(int a, int b)
        {
            int* items = stackalloc int[2] { a, b };
            QSort(items, (UIntPtr)2u, (UIntPtr)4u, Inner);
            int order = items[0] == a ? -1 : 1;
            sum += order;
            return order;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int D(int* a, int* b)
        {
            uint x = (uint)*a;
            for (int i = 0; i < 100_000; i++)
            {
                x = x * 1664525 + 1013904223;
                x ^= x >> 13;
            }
            for (int i = 0; i < 40; i++)
            {
                x += (uint)MemCmp(left, right, (UIntPtr)(uint)Length);
            }
            sum ^= x;
            return *a < *b ? -1 : 1;
        }
    }
}
