using System;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Threads that take and give back locks all the time: the allocator's of
    /// libc, the dynamic linker's, those of the type loader and of the JIT, and
    /// one of the program's own.
    /// </summary>
    public static class Locks
    {
        private static readonly object own = new object();
        private static long held;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            Console.WriteLine("method Workloads.Locks.HoldAllocator");
            long rounds = 0;
            while (run.More())
            {
                var sums = new long[4];
                var work = new Func<int, long>[] { HoldAllocator, HoldLinker, HoldTypeLoader, HoldJit };
                var four = new Thread[work.Length];
                for (int i = 0; i < four.Length; i++)
                {
                    int index = i;
                    four[i] = new Thread(() => sums[index] = work[index](20)) { Name = "locks-" + index };
                    four[i].Start();
                }
                long sum = 0;
                for (int i = 0; i < four.Length; i++)
                {
                    four[i].Join();
                    sum = sum * 31 + sums[i];
                }
                check.Add(sum);
                rounds++;
            }
            check.Print();
            Run.Measured("lock_rounds", rounds);
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long HoldAllocator(int times)
        {
            var blocks = new IntPtr[64];
            long sum = 0;
            for (int time = 0; time < times; time++)
            {
                for (int i = 0; i < blocks.Length; i++)
                {
                    // From a few bytes to what is mapped anew each time.
                    int size = 16 << (i % 15);
                    blocks[i] = Marshal.AllocHGlobal(size);
                    Marshal.WriteByte(blocks[i], (byte)i);
                    sum += size;
                }
                foreach (IntPtr block in blocks)
                {
                    sum += Marshal.ReadByte(block);
                    Marshal.FreeHGlobal(block);
                }
                HoldOwn();
            }
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long HoldLinker(int times)
        {
            long loaded = 0;
            for (int time = 0; time < times; time++)
            {
                IntPtr library;
                if (NativeLibrary.TryLoad("libm.so.6", out library))
                {
                    IntPtr symbol;
                    loaded += NativeLibrary.TryGetExport(library, "cos", out symbol) ? 1 : 0;
                    NativeLibrary.Free(library);
                }
                HoldOwn();
            }
            return loaded;
        }

        private sealed class Box<T>
        {
            public override string ToString()
            {
                return typeof(T).Name;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long HoldTypeLoader(int times)
        {
            long sum = 0;
            for (int time = 0; time < times; time++)
            {
                Type type = typeof(int);
                int depth = 1 + (int)(Interlocked.Increment(ref held) % 40);
                for (int i = 0; i < depth; i++)
                {
                    type = typeof(Box<>).MakeGenericType(type);
                }
                sum += Activator.CreateInstance(type).ToString().Length > 0 ? 1 : 0;
                HoldOwn();
            }
            return sum;
        }

        private delegate int Compiled(int x);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long HoldJit(int times)
        {
            long sum = 0;
            for (int time = 0; time < times; time++)
            {
                var method = new DynamicMethod("Held", typeof(int), new[] { typeof(int) });
                ILGenerator il = method.GetILGenerator();
                for (int i = 0; i < 50; i++)
                {
                    il.Emit(OpCodes.Ldarg_0);
                    il.Emit(OpCodes.Ldc_I4, i);
                    il.Emit(OpCodes.Add);
                    il.Emit(OpCodes.Starg_S, (byte)0);
                }
                il.Emit(OpCodes.Ldarg_0);
                il.Emit(OpCodes.Ret);
                sum += ((Compiled)method.CreateDelegate(typeof(Compiled)))(time);
                HoldOwn();
            }
            return sum;
        }

        /// <summary>The garbage collector is asked for while the lock is held.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void HoldOwn()
        {
            lock (own)
            {
                held ^= 1;
                if (held % 16 == 0)
                {
                    GC.Collect(0);
                }
            }
        }
    }
}
