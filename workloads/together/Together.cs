using System;
using System.IO;
using System.Reflection;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Other workloads in one process, each on a thread of its own and with its
    /// own copy of what they share: `together NAME,NAME… ARGUMENT…`.
    /// </summary>
    public static class Together
    {
        public static int Main(string[] args)
        {
            string[] names = args[0].Split(',');
            var rest = new string[args.Length - 1];
            Array.Copy(args, 1, rest, 0, rest.Length);
            string folder = Path.GetDirectoryName(AppContext.BaseDirectory.TrimEnd('/'));
            var threads = new Thread[names.Length];
            for (int i = 0; i < names.Length; i++)
            {
                string name = names[i];
                MethodInfo main = Assembly.LoadFrom(Path.Combine(folder, name, name + ".dll")).EntryPoint;
                threads[i] = new Thread(() =>
                {
                    if ((int)main.Invoke(null, new object[] { rest }) != 0)
                    {
                        throw new InvalidOperationException(name + " failed");
                    }
                })
                { Name = name };
            }
            foreach (Thread thread in threads)
            {
                thread.Start();
            }
            foreach (Thread thread in threads)
            {
                thread.Join();
            }
            Run.Result("together", names.Length);
            return 0;
        }
    }
}
