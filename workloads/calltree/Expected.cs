using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;

namespace Workloads
{
    /// <summary>A call path of methods that keep their own count.</summary>
    public sealed class CallPath
    {
        public readonly CallPath Caller;
        public readonly string Name;
        public readonly Dictionary<string, CallPath> Callees = new Dictionary<string, CallPath>();
        public long Calls;

        public CallPath(CallPath caller, string name)
        {
            Caller = caller;
            Name = name;
        }

        public CallPath Callee(string name)
        {
            if (!Callees.TryGetValue(name, out CallPath callee))
            {
                callee = new CallPath(this, name);
                Callees.Add(name, callee);
            }
            return callee;
        }
    }

    /// <summary>
    /// The call tree as the program knows it. A counted method begins with
    /// Enter and returns after Leave; where it goes on after an exception,
    /// Back says so; a filter lies between FilterBegins and FilterEnds. The
    /// methods here are not counted.
    /// </summary>
    public static class Expected
    {
        private static readonly List<CallPath> Roots = new List<CallPath>();

        [ThreadStatic]
        private static CallPath current;

        /// <summary>The path of the counted method that runs.</summary>
        public static CallPath Here()
        {
            if (current == null)
            {
                current = new CallPath(null, "");
                lock (Roots)
                {
                    Roots.Add(current);
                }
            }
            return current;
        }

        /// <summary>The calling method begins; its path is returned.</summary>
        public static CallPath Enter(string name)
        {
            current = Here().Callee(name);
            current.Calls++;
            return current;
        }

        /// <summary>It returns, or jumps to another one.</summary>
        public static void Leave(CallPath path)
        {
            current = path.Caller;
        }

        /// <summary>It goes on in a catch or finally block: what it had called is gone.</summary>
        public static void Back(CallPath path)
        {
            current = path;
        }

        /// <summary>
        /// Its filter runs, on top of the stack that has thrown: no call, but
        /// the caller of what the filter calls. True.
        /// </summary>
        public static bool FilterBegins(CallPath path)
        {
            current = current.Callee(path.Name);
            return true;
        }

        /// <summary>The filter's answer.</summary>
        public static bool FilterEnds(bool answer)
        {
            current = current.Caller;
            return answer;
        }

        /// <summary>Prints `calls COUNT ROOT;…;LEAF` for each path, of all threads together.</summary>
        public static void Print()
        {
            var calls = new SortedDictionary<string, long>(StringComparer.Ordinal);
            lock (Roots)
            {
                foreach (CallPath root in Roots)
                {
                    Collect(root, "", calls);
                }
            }
            foreach (KeyValuePair<string, long> path in calls.Where(path => path.Value > 0))
            {
                Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "calls {0} {1}", path.Value, path.Key));
            }
        }

        private static void Collect(CallPath path, string prefix, SortedDictionary<string, long> calls)
        {
            foreach (CallPath callee in path.Callees.Values)
            {
                string name = prefix + callee.Name;
                calls.TryGetValue(name, out long before);
                calls[name] = before + callee.Calls;
                Collect(callee, name + ";", calls);
            }
        }
    }
}
