using System;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.IO;
using System.IO.Compression;
using System.Linq;
using System.Net;
using System.Net.Http;
using System.Net.Sockets;
using System.Text;
using System.Text.Json;
using System.Text.RegularExpressions;
using System.Threading.Channels;
using System.Threading.Tasks;
using System.Xml;

namespace Workloads
{
    public class Order
    {
        public int Count { get; set; }
        public string Name { get; set; }
        public List<double> Prices { get; set; }
    }

    /// <summary>
    /// Uses many of the framework's precompiled assemblies: JSON, regular
    /// expressions, XML, URIs, collections, LINQ, compression, and, by async
    /// methods, channels, sockets and HTTP. Prints a `result` for each.
    /// </summary>
    public static class Framework
    {
        private static readonly (string Name, Func<Task<long>> Compute)[] Parts =
        {
            ("json", Json),
            ("regex", () => Task.FromResult(Words())),
            ("uri", () => Task.FromResult(Addresses())),
            ("collections", () => Task.FromResult(Collections())),
            ("linq", () => Task.FromResult(Linq())),
            ("zip", Zip),
            ("channel", Channels),
            ("socket", Sockets),
            // These two abort the process on .NET Core 3.1 where there is no OpenSSL 1.
            ("xml", () => Task.FromResult(Xml())),
            ("http", Http),
        };

        public static async Task Main(string[] args)
        {
            var run = new Run(args);
            Checked[] checks = Parts.Select(part => new Checked(part.Name)).ToArray();
            int parts = Environment.Version.Major > 3 ? Parts.Length : Parts.Length - 2;
            while (run.More())
            {
                for (int i = 0; i < parts; i++)
                {
                    checks[i].Add(await Parts[i].Compute());
                }
            }
            foreach (Checked check in checks)
            {
                check.Print();
            }
            run.End();
        }

        private static async Task<long> Json()
        {
            var order = new Order { Count = 3, Name = "Löwe", Prices = new List<double> { 1.5, 2.25 } };
            string text = JsonSerializer.Serialize(order);
            Order read = JsonSerializer.Deserialize<Order>(text);
            var stream = new MemoryStream();
            await JsonSerializer.SerializeAsync(stream, new[] { order, read });
            stream.Position = 0;
            Order[] both = await JsonSerializer.DeserializeAsync<Order[]>(stream);
            using JsonDocument document = JsonDocument.Parse(text);
            return text.Length + both.Sum(one => one.Count) + (long)(4 * both[1].Prices.Sum())
                + document.RootElement.GetProperty("Name").GetString().Length;
        }

        private static long Words()
        {
            string text = string.Join(" ", Enumerable.Range(0, 100).Select(i => "w" + i + "=" + i * i));
            return Regex.Matches(text, @"(?<word>w\d*[05])=(\d+)").Cast<Match>().Sum(match => long.Parse(match.Groups[1].Value))
                + Regex.Replace(text, "[0-9]+", "n").Length;
        }

        private static long Xml()
        {
            var document = new XmlDocument();
            document.LoadXml("<a x='1'><b>3</b><b>4</b><c/></a>");
            return document.SelectNodes("/a/b").Count + document.OuterXml.Length;
        }

        private static long Addresses()
        {
            var address = new Uri(new Uri("http://example.org/a/b?c=d"), "../e%20f?g=h#i");
            return address.AbsoluteUri.Length + Uri.EscapeDataString("ä & ö").Length
                + IPAddress.Parse("1.2.3.4").GetAddressBytes().Sum(part => part);
        }

        private static long Collections()
        {
            var sorted = new SortedDictionary<int, string>();
            var linked = new LinkedList<int>();
            var shared = new ConcurrentDictionary<int, int>();
            var queue = new BlockingCollection<int>();
            for (int i = 0; i < 100; i++)
            {
                sorted[i * 37 % 101] = "x" + i;
                linked.AddFirst(i);
                shared.AddOrUpdate(i % 7, i, (_, sum) => sum + i);
                queue.Add(i);
            }
            return sorted.Keys.First() + linked.First.Value + shared.Values.Sum() + queue.Take() + queue.Count;
        }

        private static long Linq() =>
            Enumerable.Range(0, 1000).Where(i => i % 3 == 0).OrderBy(i => -i).GroupBy(i => i % 5).Sum(group => group.Take(3).Sum());

        private static async Task<long> Zip()
        {
            var packed = new MemoryStream();
            using (var writer = new GZipStream(packed, CompressionLevel.Fastest, true))
            {
                await writer.WriteAsync(new byte[10_000], 0, 10_000);
            }
            packed.Position = 0;
            var unpacked = new MemoryStream();
            using (var reader = new GZipStream(packed, CompressionMode.Decompress))
            {
                await reader.CopyToAsync(unpacked);
            }
            return unpacked.Length;
        }

        private static async Task<long> Channels()
        {
            Channel<int> channel = Channel.CreateBounded<int>(4);
            Task writer = Task.Run(async () =>
            {
                for (int i = 0; i < 100; i++)
                {
                    await channel.Writer.WriteAsync(i);
                }
                channel.Writer.Complete();
            });
            long sum = 0;
            while (await channel.Reader.WaitToReadAsync())
            {
                while (channel.Reader.TryRead(out int item))
                {
                    sum += item;
                }
            }
            await writer;
            return sum;
        }

        private static async Task<long> Sockets()
        {
            var listener = new TcpListener(IPAddress.Loopback, 0);
            listener.Start();
            Task<TcpClient> accepts = listener.AcceptTcpClientAsync();
            using var client = new TcpClient();
            await client.ConnectAsync(IPAddress.Loopback, ((IPEndPoint)listener.LocalEndpoint).Port);
            using TcpClient server = await accepts;
            listener.Stop();
            long sum = 0;
            var buffer = new byte[1];
            for (byte i = 0; i < 20; i++)
            {
                await client.GetStream().WriteAsync(new[] { i }, 0, 1);
                await server.GetStream().ReadAsync(buffer, 0, 1);
                sum += buffer[0];
            }
            return sum;
        }

        private static async Task<long> Http()
        {
            var listener = new TcpListener(IPAddress.Loopback, 0);
            listener.Start();
            Task serves = Serve(listener, 3);
            string address = "http://127.0.0.1:" + ((IPEndPoint)listener.LocalEndpoint).Port + "/";
            long sum = 0;
            using (var client = new HttpClient())
            {
                for (int i = 0; i < 3; i++)
                {
                    using HttpResponseMessage answer = await client.PostAsync(address + i, new StringContent("{}", Encoding.UTF8, "text/plain"));
                    sum += (int)answer.StatusCode + (await answer.Content.ReadAsStringAsync()).Length;
                }
            }
            await serves;
            listener.Stop();
            return sum;
        }

        /// <summary>Answers so many requests, each on a connection of its own.</summary>
        private static async Task Serve(TcpListener listener, int requests)
        {
            byte[] answer = Encoding.ASCII.GetBytes("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
            for (int i = 0; i < requests; i++)
            {
                using TcpClient client = await listener.AcceptTcpClientAsync();
                NetworkStream stream = client.GetStream();
                var text = new StringBuilder();
                var buffer = new byte[4096];
                while (!text.ToString().EndsWith("{}", StringComparison.Ordinal))
                {
                    int read = await stream.ReadAsync(buffer, 0, buffer.Length);
                    text.Append(Encoding.ASCII.GetString(buffer, 0, read));
                }
                await stream.WriteAsync(answer, 0, answer.Length);
            }
        }
    }
}
