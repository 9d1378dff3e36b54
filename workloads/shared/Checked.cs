using System;

namespace Workloads
{
    /// <summary>
    /// A number that every round computes anew and that must always be the
    /// same: if anything changed what the program computes, it says so.
    /// </summary>
    public sealed class Checked
    {
        private readonly string name;
        private bool any;
        private long value;

        public Checked(string name)
        {
            this.name = name;
        }

        public void Add(long found)
        {
            lock (this)
            {
                if (any && found != value)
                {
                    throw new InvalidOperationException(
                        name + ": a round computed " + found.ToString("x") + ", rounds before it " + value.ToString("x"));
                }
                any = true;
                value = found;
            }
        }

        public void Print()
        {
            Run.Result(name, value.ToString("x16"));
        }
    }
}
