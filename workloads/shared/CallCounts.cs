using System;
using System.Collections.Generic;
using System.IO;

namespace Workloads
{
    /// <summary>
    /// How often each of a program's own methods has been called and how often left by an exception, by the program's own
    /// count, for a tool that counts calls to be held against.
    /// </summary>
    public sealed class CallCounts
    {
        private readonly SortedDictionary<string, long[]> counts = new SortedDictionary<string, long[]>(StringComparer.Ordinal);

        /// <summary>So many calls more, of which so many ended by an exception.</summary>
        public void Add(string method, long calls, long errors)
        {
            if (!counts.TryGetValue("Workloads." + method, out long[] known))
            {
                counts.Add("Workloads." + method, known = new long[2]);
            }
            known[0] += calls;
            known[1] += errors;
        }

        /// <summary>None so far.</summary>
        public void Forget() => counts.Clear();

        /// <summary>A line for each: <c>traced METHOD CALLS ERRORS</c>.</summary>
        public void Print(TextWriter to)
        {
            foreach (KeyValuePair<string, long[]> one in counts)
            {
                to.WriteLine("traced " + one.Key + " " + one.Value[0] + " " + one.Value[1]);
            }
        }
    }
}
