using System;
using System.Collections.Generic;
using System.IO;
using System.Reflection;
using System.Runtime.InteropServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// What programs do to signals, descriptors and themselves without asking
    /// who else is there:
    /// `exec` becomes another program, `default` gives SIGPROF its default
    /// action, `registered` takes SIGPROF by PosixSignalRegistration (.NET 6
    /// and later) and sends itself one, `handles` opens so many files
    /// (files=N) while so many threads run (threads=N), `closes` closes all
    /// descriptors from 1000 on and gives their numbers to a file, `counts` how many it can have. And abrupt ends: `kills`
    /// itself, `exits` without the runtime, `failsfast`, `throws` what nobody
    /// catches, `faults` in native code.
    /// </summary>
    public static unsafe class Rude
    {
        private const int SigKill = 9;
        private const int SigProf = 27;

        [DllImport("libc", EntryPoint = "execve", SetLastError = true)]
        private static extern int Execve(byte* path, byte** arguments, byte** environment);

        [DllImport("libc", EntryPoint = "signal")]
        private static extern IntPtr Signal(int number, IntPtr handler);

        [DllImport("libc", EntryPoint = "getpid")]
        private static extern int GetPid();

        [DllImport("libc", EntryPoint = "kill")]
        private static extern int Kill(int process, int number);

        [DllImport("libc", EntryPoint = "close")]
        private static extern int Close(int number);

        [DllImport("libc", EntryPoint = "dup2")]
        private static extern int Dup2(int from, int to);

        [DllImport("libc", EntryPoint = "dup")]
        private static extern int Dup(int number);

        [DllImport("libc", EntryPoint = "_exit")]
        private static extern void Exit(int code);

        [DllImport("libc", EntryPoint = "strlen")]
        private static extern IntPtr StrLen(IntPtr text);

        private static int callbacks;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            string mode = args[args.Length - 1];
            switch (mode)
            {
                case "exec":
                    Work(run, check);
                    Exec("/bin/echo", "measured exec 1");
                    return 1;
                case "default":
                    Signal(SigProf, IntPtr.Zero);
                    Work(run, check);
                    break;
                case "kills":
                case "exits":
                case "failsfast":
                case "throws":
                case "faults":
                    Work(run, check);
                    check.Print();
                    run.End();
                    Run.Measured("queued_ms", Queued());
                    Console.Out.Flush();
                    return EndAbruptly(mode);
                case "closes":
                    Closes(run, check);
                    break;
                case "counts":
                    Work(run, check);
                    Run.Measured("descriptors", Count());
                    break;
                case "registered":
                    object registration = Register();
                    Work(run, check);
                    Kill(GetPid(), SigProf);
                    while (Volatile.Read(ref callbacks) == 0)
                    {
                        Thread.Sleep(1);
                    }
                    GC.KeepAlive(registration);
                    Run.Result("callbacks", callbacks.ToString());
                    break;
                default:
                    Handles(args, run, check);
                    break;
            }
            check.Print();
            run.End();
            return 0;
        }

        private static void Work(Run run, Checked check)
        {
            while (run.More())
            {
                check.Add(Spin.For(1, 200_000));
            }
        }

        /// <summary>For how long this process's threads have waited for a processor.</summary>
        private static double Queued()
        {
            double nanoseconds = 0;
            foreach (string task in Directory.GetDirectories("/proc/self/task"))
            {
                try
                {
                    nanoseconds += double.Parse(File.ReadAllText(task + "/schedstat").Split(' ')[1]);
                }
                catch (IOException)
                {
                    // The thread has ended.
                }
            }
            return nanoseconds / 1e6;
        }

        private static int EndAbruptly(string how)
        {
            switch (how)
            {
                case "kills":
                    return Kill(GetPid(), SigKill);
                case "exits":
                    Exit(7);
                    return 1;
                case "failsfast":
                    Environment.FailFast("enough");
                    return 1;
                case "faults":
                    // Of the C library: it reads what is not there.
                    return (int)StrLen((IntPtr)8);
                default:
                    throw new InvalidOperationException("nobody catches this");
            }
        }

        /// <summary>
        /// How many descriptors there are beside those that are open. At their most: others may have some for a moment.
        /// </summary>
        private static int Count()
        {
            int most = 0;
            var open = new List<int>();
            for (int round = 0; round < 50; round++)
            {
                for (int number = Dup(0); number >= 0; number = Dup(0))
                {
                    open.Add(number);
                }
                most = Math.Max(most, open.Count);
                open.ForEach(number => Close(number));
                open.Clear();
                Thread.Sleep(1);
            }
            return most;
        }

        private static void Closes(Run run, Checked check)
        {
            // Let whoever has descriptors have them all.
            check.Add(Spin.For(1, 20_000_000));
            string path = Path.Combine(Path.GetTempPath(), Guid.NewGuid().ToString("N"));
            using (var file = new FileStream(path, FileMode.CreateNew))
            {
                for (int number = 1000; number < 4096; number++)
                {
                    if (Close(number) == 0)
                    {
                        Dup2((int)file.SafeFileHandle.DangerousGetHandle(), number);
                    }
                }
                while (run.More())
                {
                    check.Add(Spin.For(1, 20_000_000));
                }
                Run.Result("in_the_file", new FileInfo(path).Length);
            }
            File.Delete(path);
        }

        private static void Exec(params string[] words)
        {
            byte** arguments = stackalloc byte*[words.Length + 1];
            for (int i = 0; i < words.Length; i++)
            {
                arguments[i] = (byte*)Marshal.StringToHGlobalAnsi(words[i]);
            }
            arguments[words.Length] = null;
            byte* none = null;
            Execve(arguments[0], arguments, &none);
            Console.Error.WriteLine("execve failed: " + Marshal.GetLastWin32Error());
        }

        // By reflection: the workloads are compiled for .NET Core 3.1.
        private static object Register()
        {
            const string Name = "System.Runtime.InteropServices.PosixSignalRegistration";
            Type registration = Type.GetType(Name + ", System.Runtime.InteropServices")
                ?? typeof(object).Assembly.GetType(Name, true);
            MethodInfo create = registration.GetMethod("Create");
            ParameterInfo[] parameters = create.GetParameters();
            object number = Enum.ToObject(parameters[0].ParameterType, SigProf);
            Action<object> count = context =>
            {
                // Else the default action follows.
                context.GetType().GetProperty("Cancel").SetValue(context, true);
                Interlocked.Increment(ref callbacks);
            };
            return create.Invoke(null, new[] { number, count });
        }

        private static void Handles(string[] args, Run run, Checked check)
        {
            int threads = Number(args, "threads=");
            int files = Number(args, "files=");
            var started = new CountdownEvent(threads);
            var done = new ManualResetEventSlim();
            var all = new List<Thread>();
            for (int i = 0; i < threads; i++)
            {
                var thread = new Thread(
                    () =>
                    {
                        started.Signal();
                        done.Wait();
                    },
                    256 * 1024);
                thread.Start();
                all.Add(thread);
            }
            started.Wait();
            // Let whoever wants to have something for each thread have it.
            Work(run, check);
            var open = new List<FileStream>();
            for (int i = 0; i < files; i++)
            {
                open.Add(new FileStream("/dev/null", FileMode.Open, FileAccess.Read, FileShare.ReadWrite, 1));
            }
            Run.Result("files", open.Count.ToString());
            done.Set();
            all.ForEach(thread => thread.Join());
            open.ForEach(file => file.Dispose());
        }

        private static int Number(string[] args, string name)
        {
            foreach (string arg in args)
            {
                if (arg.StartsWith(name, StringComparison.Ordinal))
                {
                    return int.Parse(arg.Substring(name.Length));
                }
            }
            return 0;
        }
    }
}
