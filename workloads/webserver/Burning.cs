using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Channels;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Services that burn after they have waited for a timer, a lock, parallel children and a queue, so long that all
    /// who await them have said so. Every leaf is called Leaf….
    /// </summary>
    public sealed class Burning
    {
        private const int Turns = 150_000;

        private readonly SemaphoreSlim held = new SemaphoreSlim(1);
        private readonly Channel<TaskCompletionSource<bool>> queue = Channel.CreateUnbounded<TaskCompletionSource<bool>>();
        private readonly Task answering;

        public Burning()
        {
            answering = Task.Run(AnswerTheQueue);
        }

        public async Task<string> Serve(int n)
        {
            long[] all = await Task.WhenAll(Enumerable.Range(0, 3).Select(Child));
            long sum = all.Sum(x => x & 1) + (LeafAfterAll() & 1);
            sum += await Ask();
            await Task.Delay(1).ConfigureAwait(false);
            sum += LeafAfterTimer() & 1;
            return sum < 0 ? "" : "burn " + n;
        }

        private async Task<long> Child(int number)
        {
            await Task.Delay(20);
            long sum = LeafAfterDelay();
            await held.WaitAsync();
            try
            {
                return sum ^ LeafInLock() ^ number;
            }
            finally
            {
                held.Release();
            }
        }

        private async ValueTask<long> Ask()
        {
            var answer = new TaskCompletionSource<bool>();
            await queue.Writer.WriteAsync(answer);
            await answer.Task;
            return LeafAfterQueue() & 1;
        }

        private async Task AnswerTheQueue()
        {
            await foreach (TaskCompletionSource<bool> asked in queue.Reader.ReadAllAsync())
            {
                // Whoever asks has time to say that it waits.
                await Task.Delay(2);
                asked.SetResult(true);
            }
        }

        public async Task End()
        {
            queue.Writer.Complete();
            await answering;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafAfterAll() => Spin.For(1, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafAfterTimer() => Spin.For(2, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafAfterDelay() => Spin.For(3, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafInLock() => Spin.For(4, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafAfterQueue() => Spin.For(5, Turns) + 1;
    }
}
