using System.Text;

namespace Workloads
{
    /// <summary>
    /// A C# program of many kinds of statements: the more a compiler has to
    /// know, the more of its methods it runs.
    /// </summary>
    public static class Source
    {
        /// <summary>One file. Files are alike but for their numbers and the mix of their members.</summary>
        public static string File(int number, int members)
        {
            var text = new StringBuilder();
            text.Append("using System;\nusing System.Collections.Generic;\nusing System.IO;\nusing System.Linq;\n");
            text.Append("using System.Text;\nusing System.Threading;\nusing System.Threading.Tasks;\n\n");
            text.Append("namespace Generated.Part").Append(number).Append("\n{\n");
            text.Append(Types);
            text.Append("    public class Work : Base<int>, IDisposable\n    {\n");
            text.Append(Head);
            for (int member = 0; member < members; member++)
            {
                text.Append(Members[(number + member) % Members.Length].Replace("$$", member.ToString(System.Globalization.CultureInfo.InvariantCulture)));
            }
            text.Append("    }\n}\n");
            return text.ToString();
        }

        private const string Types = @"
    public enum Colour : byte { Red = 1, Green = Red << 1, Blue = Green << 1, All = Red | Green | Blue }
    public delegate TOut Mapper<in TIn, out TOut>(TIn value) where TOut : class;
    public interface IShape { double Area { get; } string Describe() => ""a shape of "" + Area; }
    public readonly struct Point : IEquatable<Point>
    {
        public readonly int X, Y;
        public Point(int x, int y) => (X, Y) = (x, y);
        public void Deconstruct(out int x, out int y) => (x, y) = (X, Y);
        public bool Equals(Point other) => X == other.X && Y == other.Y;
        public override bool Equals(object other) => other is Point p && Equals(p);
        public override int GetHashCode() => HashCode.Combine(X, Y);
        public static Point operator +(Point a, Point b) => new Point(a.X + b.X, a.Y + b.Y);
        public static bool operator ==(Point a, Point b) => a.Equals(b);
        public static bool operator !=(Point a, Point b) => !a.Equals(b);
        public static implicit operator Point((int X, int Y) pair) => new Point(pair.X, pair.Y);
        public static explicit operator int(Point p) => p.X;
    }
    public sealed class Circle : IShape { public double Radius { get; set; } = 1.5; public double Area => Math.PI * Radius * Radius; }
    public sealed class Box : IShape { public double Width, Height; public double Area => Width * Height; }
    [AttributeUsage(AttributeTargets.All, AllowMultiple = true)]
    public sealed class NoteAttribute : Attribute { public NoteAttribute(string text, params int[] numbers) { } public Type Kind { get; set; } }
    public abstract class Base<T> where T : struct, IComparable<T>
    {
        protected readonly Dictionary<string, List<T>> table = new Dictionary<string, List<T>>(StringComparer.Ordinal);
        public event EventHandler<EventArgs> Changed;
        public virtual T this[string key, int index = 0] { get => table[key][index]; set { table[key][index] = value; Changed?.Invoke(this, EventArgs.Empty); } }
        protected abstract T Combine(T left, T right);
    }
    public static class Extensions
    {
        public static IEnumerable<TOut> Both<TIn, TOut>(this IEnumerable<TIn> first, IEnumerable<TIn> second, Func<TIn, TIn, TOut> with) { using var a = first.GetEnumerator(); using var b = second.GetEnumerator(); while (a.MoveNext() && b.MoveNext()) yield return with(a.Current, b.Current); }
        public static int Words(this string text) => text.Split(new[] { ' ', '\n' }, StringSplitOptions.RemoveEmptyEntries).Length;
    }
";

        private const string Head = @"
        private int state; private readonly object gate = new object(); private static readonly int[] Primes = { 2, 3, 5, 7, 11, 13 };
        protected override int Combine(int left, int right) => unchecked(left * 31 + right);
        public void Dispose() { lock (gate) { state = -1; } GC.SuppressFinalize(this); }
        ~Work() => state = 0;
";

        private static readonly string[] Members =
        {
            @"
        [Note(""query"", 1, 2, Kind = typeof(List<>))]
        public IEnumerable<string> Query$$(IEnumerable<Point> points) =>
            from p in points where p.X > $$ && p.Y % 2 == 0 let sum = p.X + p.Y
            join q in Primes on sum % 13 equals q into found
            from f in found.DefaultIfEmpty() orderby sum descending, p.X group f by p.Y into byY
            select $""{byY.Key,5:x}: {string.Join("", "", byY.Select(v => v.ToString()))}"";
",
            @"
        public async Task<int> Wait$$(CancellationToken token = default)
        {
            int total = 0;
            try { foreach (int prime in Primes) { await Task.Delay(prime, token).ConfigureAwait(false); total += prime; if (total > 100 + $$) break; } }
            catch (OperationCanceledException e) when (e.CancellationToken == token) { total = await Task.FromResult(-1); }
            finally { await Task.Yield(); }
            async Task<T> Again<T>(Func<Task<T>> what) { T last = default; for (int i = 0; i < 3; i++) last = await what(); return last; }
            return total + await Again(() => Task.Run(() => total * 2));
        }
",
            @"
        public static string Match$$(object what, int depth = 0) => what switch
        {
            null => ""nothing"", int n when n < 0 => ""negative"", int n and (> 10 and < 100) => $""{n}"", int => ""number"",
            string { Length: > 3 } s => s.ToUpperInvariant(), string s => s, Point(0, _) => ""axis"", Point { X: var x, Y: var y } when x == y => ""diagonal"",
            Circle { Radius: > 2.0 } c => c.Radius.ToString(""F2""), IShape shape => shape.Describe(), (int a, string b) => b + a,
            Colour.Red or Colour.Blue => ""colour"", IEnumerable<int> all => all.Sum().ToString(), _ => depth > $$ ? ""deep"" : Match$$(what.GetType(), depth + 1),
        };
",
            @"
        public unsafe int Bytes$$(byte[] data, ref int position, out bool ok)
        {
            int hash = $$; ok = false;
            fixed (byte* start = data) { byte* p = start + position; byte* end = start + data.Length; while (p < end) { hash ^= *p++; hash = hash << 5 | (int)((uint)hash >> 27); } position = (int)(p - start); }
            Span<int> few = stackalloc int[4]; for (int i = 0; i < few.Length; i++) few[i] = hash >> i * 8 & 0xff;
            checked { try { hash += few[0] * few[1] + (few[2] ^ few[3]); ok = true; } catch (OverflowException) { hash = int.MaxValue; } }
            return ok ? hash : ~hash;
        }
",
            @"
        public IEnumerator<(int Key, string Text)> Walk$$(SortedDictionary<int, string> tree)
        {
            var later = new Stack<KeyValuePair<int, string>>();
            foreach (var (key, text) in tree.Select(pair => (pair.Key, pair.Value)))
            {
                switch (key % 4) { case 0: yield return (key, text ?? ""none""); break; case 1: later.Push(new KeyValuePair<int, string>(key, text)); goto case 2; case 2: state++; break; default: if (state > $$) yield break; continue; }
                do { if (later.Count == 0) break; var top = later.Pop(); yield return (Key: top.Key, Text: top.Value); } while (later.Any(item => item.Key > key));
            }
            bool Any(Predicate<int> test) { foreach (int prime in Primes) if (test(prime)) return true; return false; }
            if (Any(p => p == state)) yield return (state, nameof(Walk$$));
        }
",
            @"
        public TResult Fold$$<TItem, TResult>(IReadOnlyList<TItem> items, TResult seed, Func<TResult, TItem, TResult> step) where TItem : IComparable<TItem> where TResult : new()
        {
            TItem most = items.Count > 0 ? items[0] : default; var result = seed ?? new TResult(); int? limit = items.Count > $$ ? items.Count : (int?)null;
            for (int i = 0, j = items.Count - 1; i <= j; i++, j--) { result = step(step(result, items[i]), items[j]); if (items[i].CompareTo(most) > 0) (most, _) = (items[i], most); if (i >= (limit ?? 1000)) throw new InvalidOperationException($""too many: {i}""); }
            Func<int, Func<int, int>> add = a => b => a + b + state; dynamicLike(add(1)(2)); void dynamicLike(int value) => state = value; var pair = new { Most = most, Result = result, Name = ""pair"" };
            return pair.Name.Words() == 1 ? pair.Result : seed;
        }
",
            @"
        public decimal Money$$ { get { lock (gate) return money$$ * 1.19m; } private set => money$$ = value < 0m ? throw new ArgumentOutOfRangeException(nameof(value)) : value; } private decimal money$$ = $$.50m;
        public string Text$$(params string[] parts) { using (var writer = new StringWriter()) { foreach (var part in parts ?? Array.Empty<string>()) { if (string.IsNullOrWhiteSpace(part)) continue; writer.Write(part?.Trim()[..1] + part[^1]); writer.WriteLine(@""verbatim """"quoted"""" {0}"", '\u00e9'); } return writer.ToString(); } }
        public Point Sum$$(Point[] all) { Point sum = (0, 0); foreach (ref readonly Point p in all.AsSpan()) sum += p; var (x, y) = sum; return sum != new Point(x, y) ? default : x > y ? sum : (Point)(y, x); }
",
        };
    }
}
