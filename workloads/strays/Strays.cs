using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Workloads
{
    /// <summary>
    /// Burns in a native function whose unwind table is wrong, so that a walk
    /// takes the next word of the stack for the return address. It is in the
    /// first method of a precompiled library that is loaded and of which no
    /// method has ever run; with `anywhere` it is by chance anywhere in what
    /// may run but precompiled code. With `untabled` the function has no table,
    /// and old return addresses lie in its buffer; then it burns in code that
    /// it has made itself. Its last argument is libnative_threads.so of
    /// crates/native-threads.
    /// </summary>
    public static class Strays
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate ulong BurnOver(IntPtr word, ulong rounds);

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            IntPtr library = NativeLibrary.Load(args[args.Length - 1]);
            if (args.Contains("untabled"))
            {
                Untabled(run, library);
                run.End();
                return 0;
            }
            IntPtr function = NativeLibrary.GetExport(library, "burn_over");
            var burn = Marshal.GetDelegateForFunctionPointer<BurnOver>(function);
            IntPtr word = InFirstMethod(Assembly.Load("System.Private.Xml").Location);
            bool anywhere = args.Contains("anywhere");
            var chance = new Random(1);
            while (run.More())
            {
                List<long[]> code = anywhere ? Code() : null;
                for (int i = 0; i < 1000; i++)
                {
                    if (anywhere)
                    {
                        long[] range = code[chance.Next(code.Count)];
                        word = (IntPtr)(range[0] + (long)(chance.NextDouble() * range[1]));
                    }
                    check.Add((long)burn(word, 20_000));
                }
            }
            check.Print();
            run.End();
            return 0;
        }

        private static void Untabled(Run run, IntPtr library)
        {
            IntPtr function = NativeLibrary.GetExport(library, "burn_in_buffer");
            var burn = Marshal.GetDelegateForFunctionPointer<BurnOver>(function);
            var generated = Marshal.GetDelegateForFunctionPointer<BurnOver>(Generate());
            while (run.More())
            {
                for (int i = 0; i < 64; i++)
                {
                    Decoy(300);
                    CallNative(burn, i % 8);
                    CallGenerated(generated);
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Decoy(int depth) => depth == 0 ? 1 : Decoy(depth - 1) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void CallNative(BurnOver burn, int words) => burn((IntPtr)words, 200_000);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void CallGenerated(BurnOver generated) => generated(IntPtr.Zero, 200_000);

        /// <summary>A loop in memory of its own, between pages that are not code.</summary>
        private static IntPtr Generate()
        {
            const int Page = 4096;
            IntPtr memory = mmap(IntPtr.Zero, (IntPtr)(3 * Page), 3, 0x22, -1, IntPtr.Zero) + Page;
            // lea rax, [rax + rax * 2 + 1]; dec rsi; jnz; ret
            byte[] code = { 0x48, 0x8d, 0x44, 0x40, 0x01, 0x48, 0xff, 0xce, 0x75, 0xf6, 0xc3 };
            Marshal.Copy(code, 0, memory, code.Length);
            if (mprotect(memory, (IntPtr)Page, 5) != 0)
            {
                throw new InvalidOperationException("mprotect");
            }
            return memory;
        }

        [DllImport("libc")]
        private static extern IntPtr mmap(IntPtr at, IntPtr length, int rights, int flags, int file, IntPtr offset);

        [DllImport("libc")]
        private static extern int mprotect(IntPtr at, IntPtr length, int rights);

        /// <summary>Starts and lengths of native libraries and of memory that are mapped to run.</summary>
        private static List<long[]> Code()
        {
            var found = new List<long[]>();
            foreach (string line in File.ReadLines("/proc/self/maps").Where(line => line.Contains(" r-x") && !line.EndsWith(".dll")))
            {
                string[] ends = line.Substring(0, line.IndexOf(' ')).Split('-');
                long start = Convert.ToInt64(ends[0], 16);
                found.Add(new[] { start, Convert.ToInt64(ends[1], 16) - start });
            }
            return found;
        }

        /// <summary>An address behind the first byte of the first method of a loaded ReadyToRun image.</summary>
        private static IntPtr InFirstMethod(string path)
        {
            const int RuntimeFunctions = 102;
            // It may be mapped flat too, shared, to read its metadata.
            string mapped = File.ReadLines("/proc/self/maps")
                .First(line => line.EndsWith(path) && line.Contains(" r--p 00000000 "));
            long start = Convert.ToInt64(mapped.Substring(0, mapped.IndexOf('-')), 16);
            byte[] file = File.ReadAllBytes(path);
            Func<int, int> number = at => BitConverter.ToInt32(file, at);
            int headers = number(0x3c);
            int optional = headers + 24;
            int sections = optional + BitConverter.ToUInt16(file, headers + 20);
            int count = BitConverter.ToUInt16(file, headers + 6);
            Func<int, int> inFile = address =>
            {
                for (int at = sections; at < sections + count * 40; at += 40)
                {
                    if (address >= number(at + 12) && address < number(at + 12) + number(at + 16))
                    {
                        return address - number(at + 12) + number(at + 20);
                    }
                }
                throw new InvalidDataException(path);
            };
            // IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR, its ManagedNativeHeader, READYTORUN_HEADER.
            int managed = inFile(number(optional + 112 + 14 * 8));
            int precompiled = inFile(number(managed + 64));
            for (int at = precompiled + 16; at < precompiled + 16 + number(precompiled + 12) * 12; at += 12)
            {
                if (number(at) == RuntimeFunctions)
                {
                    return (IntPtr)(start + number(inFile(number(at + 4))) + 1);
                }
            }
            throw new InvalidDataException(path);
        }
    }
}
