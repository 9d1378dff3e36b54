using System;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Async methods by other compilers than that of C#. Prints `chain LEAF CALLER…` for each leaf, as asyncchains does.
    /// </summary>
    public static class AsyncLanguages
    {
        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            foreach (string space in new[] { "", "Unoptimised." })
            {
                string vb = space + "VisualBasic.";
                Tell(vb + "BurnVb", vb + "VbInner", vb + "VbMiddle", vb + "VbRoot", "AsyncLanguages.Number");
                Tell(vb + "BurnVbSub", vb + "VbSub", vb + "VbSubRoot", "AsyncLanguages.Nothing");
                Tell(vb + "BurnVbLambda", vb + "lambda#0", "AsyncLanguages.Number");
            }
            Tell("FSharp.BurnFs", "FSharp.Number.MoveNext", "FSharp.Number.MoveNext", "AsyncLanguages.Number");
            Tell("FSharp.BurnFsText", "FSharp.Text.MoveNext", "AsyncLanguages.Text");
            Tell("FSharp.BurnFsClosure", "Shop.checkout.lambda@12", "FSharp.Number.MoveNext", "AsyncLanguages.Number");
            Func<long> closure = FSharp.Closure();
            while (run.More())
            {
                long sum = 0;
                foreach (Func<Task<long>, Task<long>> root in new Func<Task<long>, Task<long>>[]
                {
                    gate => Number(VisualBasic.VbRoot(gate)),
                    gate => Nothing(VisualBasic.VbSubRoot(gate)),
                    gate => Number(VisualBasic.VbLambda(gate)),
                    gate => Number(Unoptimised.VisualBasic.VbRoot(gate)),
                    gate => Nothing(Unoptimised.VisualBasic.VbSubRoot(gate)),
                    gate => Number(Unoptimised.VisualBasic.VbLambda(gate)),
                    gate => Number(FSharp.FsNumber(gate)),
                    gate => Text(FSharp.FsText(gate)),
                    gate => Number(FSharp.FsClosure(gate, closure)),
                })
                {
                    var gate = new TaskCompletionSource<long>(TaskCreationOptions.RunContinuationsAsynchronously);
                    Task<long> task = root(gate.Task);
                    // All who await do by now.
                    gate.SetResult(1);
                    sum = sum * 31 + task.GetAwaiter().GetResult();
                }
                check.Add(sum);
            }
            check.Print();
            run.End();
            return 0;
        }

        private static async Task<long> Number(Task<long> awaited) => await awaited + 1;

        private static async Task<long> Text(Task<string> awaited) => (await awaited).Length;

        private static async Task<long> Nothing(Task awaited)
        {
            await awaited;
            return 1;
        }

        private static void Tell(string leaf, params string[] callers)
        {
            string told = "";
            foreach (string caller in callers)
            {
                told += " Workloads." + caller;
            }
            Console.WriteLine("chain Workloads." + leaf + told);
        }
    }
}
