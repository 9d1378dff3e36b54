using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Text.Json;
using System.Text.RegularExpressions;
using System.Threading;
using System.Threading.Channels;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>Async services that wait for each other: a queue, a lock, a timer, parallel children.</summary>
    public sealed class Carts
    {
        private readonly Channel<(int Item, TaskCompletionSource<long> Price)> queue =
            Channel.CreateUnbounded<(int, TaskCompletionSource<long>)>();
        private readonly SemaphoreSlim stockLock = new SemaphoreSlim(1);
        private readonly Dictionary<int, long> stock = new Dictionary<int, long>();
        private readonly Task pricing;

        public Carts()
        {
            pricing = Task.Run(PriceTheQueue);
        }

        public async Task<string> CheckOut(int n)
        {
            Task<long> priced = AskPrice(n);
            long[] lines = await Task.WhenAll(Enumerable.Range(0, 4).Select(child => ReserveLine(n + child)));
            if (n % 8 == 0)
            {
                await Task.Delay(1);
            }
            return "cart " + (await priced + lines.Sum()).ToString(CultureInfo.InvariantCulture);
        }

        private async Task<long> AskPrice(int item)
        {
            var price = new TaskCompletionSource<long>(TaskCreationOptions.RunContinuationsAsynchronously);
            await queue.Writer.WriteAsync((item, price));
            return await price.Task;
        }

        private async Task<long> ReserveLine(int item)
        {
            await Task.Yield();
            await stockLock.WaitAsync();
            try
            {
                stock.TryGetValue(item, out long reserved);
                stock[item] = reserved + 1;
                return item * 3;
            }
            finally
            {
                stockLock.Release();
            }
        }

        private async Task PriceTheQueue()
        {
            await foreach (var (item, price) in queue.Reader.ReadAllAsync())
            {
                price.SetResult(item * 31L + 7);
            }
        }

        public async Task End()
        {
            queue.Writer.Complete();
            await pricing;
        }
    }

    public static class Json
    {
        public sealed class Order
        {
            public int Id { get; set; }
            public string Name { get; set; }
            public List<Line> Lines { get; set; }
        }

        public sealed class Line
        {
            public string Article { get; set; }
            public decimal Price { get; set; }
            public int Count { get; set; }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static string RoundTrip(int n)
        {
            var order = new Order
            {
                Id = n,
                Name = "order " + n,
                Lines = Enumerable.Range(0, 10).Select(i => new Line { Article = "article " + i, Price = i + 0.25m, Count = n % 7 + i }).ToList(),
            };
            Order back = JsonSerializer.Deserialize<Order>(JsonSerializer.SerializeToUtf8Bytes(order));
            return "json " + back.Id + " " + back.Lines.Sum(line => line.Price * line.Count).ToString(CultureInfo.InvariantCulture);
        }
    }

    public static class Texts
    {
        private static readonly Regex Words = new Regex(@"\b(?<first>[a-z])[a-z]*(?<digits>\d+)\b", RegexOptions.Compiled);

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static string CountMatches(int n)
        {
            string text = string.Join(' ', Enumerable.Range(0, 20).Select(i => "word" + (n + i) + " other " + i));
            return "regex " + Words.Matches(text).Sum(match => match.Groups["digits"].Length);
        }
    }

    public static class Faults
    {
        private sealed class Node
        {
            public readonly Node Next;
            public readonly int Value;

            public Node(int value, Node next)
            {
                Value = value;
                Next = next;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static string CatchNullReference(int n)
        {
            try
            {
                return "nullref " + FollowTheChain(new Node(n, null), 3);
            }
            catch (NullReferenceException)
            {
                return "nullref caught " + n;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int FollowTheChain(Node node, int depth) => depth == 0 ? node.Value : node.Value + FollowTheChain(node.Next, depth - 1);
    }
}
