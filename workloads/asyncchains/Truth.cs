using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Who awaits each leaf, and the program's own word for it: an AsyncLocal that every method
    /// puts its name on, read where a leaf burns. A leaf that finds another chain than the
    /// table's ends the program.
    /// </summary>
    public static class Truth
    {
        private const int Turns = 1_500_000;

        private static readonly FieldInfo Continuation =
            typeof(Task).GetField("m_continuationObject", BindingFlags.Instance | BindingFlags.NonPublic);

        private static readonly AsyncLocal<Step> Here = new AsyncLocal<Step>();
        private static readonly Dictionary<string, string[]> Chains = new Dictionary<string, string[]>();
        private static readonly List<Task> Watched = new List<Task>();
        private static volatile TaskCompletionSource<bool> gate;
        private static volatile byte[] kept;

        private sealed class Step
        {
            public string Name;
            public Step Caller;
        }

        /// <summary>
        /// Says who awaits a leaf: its caller first. "[…]" stands between methods, with _ for a space; ".Name" is
        /// one that the AsyncLocal does not know of, "System.…" one of the class library, "Name*N" N of one name,
        /// "*" at the end any callers.
        /// </summary>
        public static void Chain(string leaf, params string[] callers)
        {
            string[] all = callers.SelectMany(Repeated).ToArray();
            Chains.Add(leaf, all.Where(name => !name.StartsWith('.') && !IsWhole(name)).ToArray());
            string told = string.Join(" ", all.Select(name =>
                IsWhole(name) ? name : "Workloads.AsyncChains." + name.TrimStart('.')));
            Console.WriteLine("chain Workloads.AsyncChains." + leaf + " " + told);
        }

        private static bool IsWhole(string name) => name == "*" || name.StartsWith('[') || name.StartsWith("System.");

        private static IEnumerable<string> Repeated(string name)
        {
            int star = name.IndexOf('*');
            return star <= 0 ? new[] { name } : Enumerable.Repeat(name.Substring(0, star), int.Parse(name.Substring(star + 1)));
        }

        /// <summary>What leaves wait for until all who await them do.</summary>
        public static Task Gate => gate.Task;

        /// <summary>A method has been called.</summary>
        public static void Enter(string name) => Here.Value = new Step { Name = name, Caller = Here.Value };

        /// <summary>A task that somebody else will await, soon.</summary>
        public static Task<long> Watch(Task<long> task)
        {
            lock (Watched)
            {
                Watched.Add(task);
            }
            return task;
        }

        /// <summary>Calls a root, lets its leaves burn when all is linked that will be, and waits for it.</summary>
        public static long Play(Func<Task<long>> root, int watched)
        {
            gate = new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);
            Watched.Clear();
            Here.Value = null;
            Task<long> task = root();
            while (!AreLinked(watched))
            {
                Thread.Yield();
            }
            gate.SetResult(true);
            return task.GetAwaiter().GetResult();
        }

        private static bool AreLinked(int count)
        {
            lock (Watched)
            {
                return Watched.Count == count && Watched.All(task => Continuation.GetValue(task) != null);
            }
        }

        /// <summary>Leaves do more than burn.</summary>
        public static bool Events;

        /// <summary>What is told of as it happens: allocations, an exception.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Happen(string leaf)
        {
            for (int i = 0; i < 64; i++)
            {
                kept = new byte[8192];
            }
            try
            {
                throw new FormatException(leaf);
            }
            catch (FormatException)
            {
            }
        }

        /// <summary>Burns for a leaf, which must have been called as the table says.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Burn(string leaf)
        {
            Step step = Here.Value;
            foreach (string name in Chains[leaf])
            {
                if (step?.Name != name)
                {
                    throw new InvalidOperationException(leaf + " was called by " + step?.Name + " where " + name + " should be");
                }
                step = step.Caller;
            }
            if (step != null)
            {
                throw new InvalidOperationException(leaf + " has " + step.Name + " above its root");
            }
            if (Events)
            {
                Happen(leaf);
            }
            return Spin.For(leaf.Length, Turns) + 1;
        }
    }
}
