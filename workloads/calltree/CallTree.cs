using System;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>A generic type whose methods are counted.</summary>
    public class TreeBox<T>
    {
        private readonly T item;

        public TreeBox(T item)
        {
            this.item = item;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Twice<TOther>(TOther other, string arguments)
        {
            CallPath me = Expected.Enter("Workloads.TreeBox<" + arguments + ">.Twice<" + Argument<TOther>() + ">");
            int hash = Once(other == null, Argument<T>()) + Once(item == null, Argument<T>());
            Expected.Leave(me);
            return hash;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private int Once(bool isNull, string argument)
        {
            CallPath me = Expected.Enter("Workloads.TreeBox<" + argument + ">.Once");
            Expected.Leave(me);
            return isNull ? 1 : 2;
        }

        /// <summary>As the runtime shares code and reports show it: reference types are one, `_`.</summary>
        public static string Argument<TAny>()
        {
            return typeof(TAny).IsValueType ? (typeof(TAny) == typeof(int) ? "int" : "long") : "_";
        }
    }

    public abstract class Shape
    {
        public abstract int Sides();
    }

    public sealed class Triangle : Shape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public override int Sides()
        {
            CallPath me = Expected.Enter("Workloads.Triangle.Sides");
            Expected.Leave(me);
            return 3;
        }
    }

    public sealed class Square : Shape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public override int Sides()
        {
            CallPath me = Expected.Enter("Workloads.Square.Sides");
            Expected.Leave(me);
            return 4;
        }
    }

    public sealed class Fall : Exception
    {
        public readonly int Height;

        public Fall(int height) : base("fall")
        {
            Height = height;
        }
    }

    /// <summary>
    /// Calls of every kind, each counted by the program itself: recursion,
    /// generics, virtual calls, exceptions through several frames in every
    /// way, tail calls, native code in between, threads, async methods. Prints
    /// `calls COUNT PATH`, the exact call tree of the methods that count. The
    /// argument `depth=N` is how deep Down goes.
    /// </summary>
    public static class CallTree
    {
        private static int depth = 40;
        private static Func<long, long> tails;

        public static int Main(string[] args)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Main");
            var run = new Run(args);
            var sum = new Checked("checksum");
            foreach (string arg in args)
            {
                if (arg.StartsWith("depth=", StringComparison.Ordinal))
                {
                    depth = int.Parse(arg.Substring(6));
                }
            }
            tails = TailCalls.Make();
            while (run.More())
            {
                sum.Add(Round());
            }
            sum.Print();
            Expected.Leave(me);
            Expected.Print();
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Round()
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Round");
            long sum = Fib(10) * 31 + Even(11) + Down(depth);
            sum = sum * 31 + Generics();
            sum = sum * 31 + Virtuals();
            for (int i = 0; i < 5; i++)
            {
                sum = sum * 31 + CatchHigher(i);
                sum = sum * 31 + CatchFiltered(i);
                sum = sum * 31 + CatchRethrown(i);
                sum = sum * 31 + CatchNested(i);
                sum = sum * 31 + CatchReplaced(i);
                sum = sum * 31 + CatchHardware(i);
                sum = sum * 31 + CatchReflected(i);
            }
            sum = sum * 31 + tails(50);
            sum = sum * 31 + Hot(20_000);
            sum = sum * 31 + Native();
            sum = sum * 31 + Threads();
            sum = sum * 31 + Steps(3).Result;
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Fib(int n)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Fib");
            long sum = n < 2 ? n : Fib(n - 1) + Fib(n - 2);
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Even(int n)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Even");
            long answer = n == 0 ? 1 : Odd(n - 1) + 1;
            Expected.Leave(me);
            return answer;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Odd(int n)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Odd");
            long answer = n == 0 ? 0 : Even(n - 1) + 1;
            Expected.Leave(me);
            return answer;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Down(int n)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Down");
            long answer = n <= 1 ? Bottom() : Down(n - 1) + 1;
            Expected.Leave(me);
            return answer;
        }

        /// <summary>An exception in the deepest frame.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Bottom()
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Bottom");
            long answer = CatchHigher(3);
            Expected.Leave(me);
            return answer;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Generics()
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Generics");
            long sum = new TreeBox<int>(1).Twice("a", "int");
            sum += new TreeBox<int>(1).Twice(2L, "int");
            sum += new TreeBox<long>(1).Twice(3, "long");
            sum += new TreeBox<string>("b").Twice(4, "_");
            sum += new TreeBox<object>(me).Twice("c", "_");
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Virtuals()
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Virtuals");
            long sum = 0;
            Func<int> bound = new Triangle().Sides;
            foreach (Shape shape in new Shape[] { new Triangle(), new Square(), new Square() })
            {
                sum += shape.Sides() + bound();
            }
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Throw(int frames, int height)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Throw");
            if (frames == 0)
            {
                throw new Fall(height);
            }
            long answer = Throw(frames - 1, height) + 1;
            Expected.Leave(me);
            return answer;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long After(long value)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.After");
            Expected.Leave(me);
            return value + 1;
        }

        /// <summary>Caught several frames up; the handler calls something, and so does what follows.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CatchHigher(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.CatchHigher");
            long sum;
            try
            {
                sum = Throw(6, i);
            }
            catch (Fall fall)
            {
                Expected.Back(me);
                sum = After(fall.Height);
            }
            sum += After(sum);
            Expected.Leave(me);
            return sum;
        }

        /// <summary>A filter that says no, a finally block, a filter that says yes; each calls something.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CatchFiltered(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.CatchFiltered");
            long sum = 0;
            try
            {
                sum += Between(i);
            }
            catch (Fall fall) when (Expected.FilterBegins(me) && Expected.FilterEnds(IsHeight(fall, i)))
            {
                Expected.Back(me);
                sum += After(1);
            }
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Between(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Between");
            long sum = 0;
            try
            {
                sum += Throw(3, i);
            }
            catch (Fall fall) when (Expected.FilterBegins(me) && Expected.FilterEnds(IsHeight(fall, -1)))
            {
                Expected.Back(me);
                sum += After(2);
            }
            finally
            {
                Expected.Back(me);
                sum += After(3);
            }
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static bool IsHeight(Fall fall, int height)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.IsHeight");
            Expected.Leave(me);
            return fall.Height == height;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CatchRethrown(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.CatchRethrown");
            long sum = 0;
            try
            {
                try
                {
                    sum += Throw(2, i);
                }
                catch (Fall)
                {
                    Expected.Back(me);
                    sum += After(4);
                    throw;
                }
            }
            catch (Exception e)
            {
                Expected.Back(me);
                sum += After(((Fall)e).Height);
                try
                {
                    sum += Wrap(i);
                }
                catch (InvalidOperationException)
                {
                    Expected.Back(me);
                    sum += After(5);
                }
            }
            Expected.Leave(me);
            return sum;
        }

        /// <summary>Throws another exception out of a catch block, two frames down.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Wrap(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Wrap");
            long sum = 0;
            try
            {
                sum += Throw(1, i);
            }
            catch (Fall fall)
            {
                Expected.Back(me);
                sum += Rewrap(fall);
            }
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Rewrap(Fall fall)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Rewrap");
            if (fall.Height >= 0)
            {
                throw new InvalidOperationException("wrapped", fall);
            }
            Expected.Leave(me);
            return 0;
        }

        /// <summary>Exceptions that are thrown and caught while another one is on its way.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CatchNested(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.CatchNested");
            long sum = 0;
            try
            {
                sum += WithFinally(i);
            }
            catch (Fall fall)
            {
                Expected.Back(me);
                sum += After(fall.Height);
            }
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long WithFinally(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.WithFinally");
            long sum = 0;
            try
            {
                sum += Throw(2, i);
            }
            finally
            {
                Expected.Back(me);
                sum += CatchHigher(i + 1);
                sum += After(6);
            }
            Expected.Leave(me);
            return sum;
        }

        /// <summary>A finally block whose own exception takes the place of the first.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CatchReplaced(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.CatchReplaced");
            long sum = 0;
            try
            {
                sum += Replace(i);
            }
            catch (Exception e)
            {
                Expected.Back(me);
                sum += After(e is InvalidOperationException ? 7 : 70);
            }
            sum += After(8);
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Replace(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Replace");
            long sum = 0;
            try
            {
                sum += Throw(2, i);
            }
            finally
            {
                Expected.Back(me);
                sum += Rewrap(new Fall(i));
            }
            Expected.Leave(me);
            return sum;
        }

        /// <summary>Exceptions that the runtime makes from SIGSEGV and SIGFPE; a filter that throws.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CatchHardware(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.CatchHardware");
            long sum = 0;
            try
            {
                sum += Sides(null);
            }
            catch (NullReferenceException)
            {
                Expected.Back(me);
                sum += After(9);
            }
            try
            {
                sum += Divide(i, 0);
            }
            catch (DivideByZeroException) when (Expected.FilterBegins(me) && Refuse(i))
            {
                sum += 1;
            }
            catch (DivideByZeroException e)
            {
                Expected.Back(me);
                sum += After(e.Message.Length > 0 ? 10 : 0);
            }
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Sides(Shape shape)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Sides");
            long sides = shape.Sides();
            Expected.Leave(me);
            return sides;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Divide(int a, int b)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Divide");
            long quotient = a / b;
            Expected.Leave(me);
            return quotient;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static bool Refuse(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Refuse");
            if (i >= 0)
            {
                throw new Fall(i);
            }
            Expected.Leave(me);
            return true;
        }

        /// <summary>Through the runtime's own frames, managed and native.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CatchReflected(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.CatchReflected");
            long sum = 0;
            try
            {
                MethodInfo method = typeof(CallTree).GetMethod(nameof(Throw), BindingFlags.NonPublic | BindingFlags.Static);
                sum += (long)method.Invoke(null, new object[] { 2, i });
            }
            catch (TargetInvocationException e)
            {
                Expected.Back(me);
                sum += After(((Fall)e.InnerException).Height);
            }
            Expected.Leave(me);
            return sum;
        }

        /// <summary>A loop long enough to be compiled again while it runs.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Hot(int n)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Hot");
            long sum = 0;
            for (int i = 0; i < n; i++)
            {
                sum = sum * 31 + i;
                if (i % 1000 == 0)
                {
                    sum += After(i);
                }
            }
            Expected.Leave(me);
            return sum;
        }

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate int Comparer(IntPtr a, IntPtr b);

        [DllImport("libc", EntryPoint = "qsort")]
        private static extern void Sort([In, Out] long[] items, UIntPtr count, UIntPtr size, Comparer comparer);

        /// <summary>Native code that calls back.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Native()
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Native");
            var items = new long[] { 5, 3, 9, 1, 7 };
            Comparer comparer = Compare;
            Sort(items, (UIntPtr)items.Length, (UIntPtr)8, comparer);
            GC.KeepAlive(comparer);
            Expected.Leave(me);
            return items[0] * 10 + items[4];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Compare(IntPtr a, IntPtr b)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Compare");
            int order = Marshal.ReadInt64(a).CompareTo(Marshal.ReadInt64(b));
            Expected.Leave(me);
            return order;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Threads()
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Threads");
            var threads = new Thread[3];
            var sums = new long[threads.Length];
            for (int i = 0; i < threads.Length; i++)
            {
                int number = i;
                threads[i] = new Thread(() => sums[number] = Body(number + 4));
                threads[i].Start();
            }
            long sum = 0;
            for (int i = 0; i < threads.Length; i++)
            {
                threads[i].Join();
                sum = sum * 31 + sums[i];
            }
            Expected.Leave(me);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Body(int n)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Body");
            long sum = Fib(n) + CatchHigher(n);
            Expected.Leave(me);
            return sum;
        }

        /// <summary>Not counted itself: it is a state machine. Goes on on other threads.</summary>
        private static async Task<long> Steps(int n)
        {
            long sum = Step(n);
            for (int i = 0; i < n; i++)
            {
                await Task.Yield();
                sum += Step(i);
                CallPath here = Expected.Here();
                try
                {
                    sum += Throw(1, i);
                }
                catch (Fall fall)
                {
                    Expected.Back(here);
                    sum += fall.Height;
                }
            }
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Step(int i)
        {
            CallPath me = Expected.Enter("Workloads.CallTree.Step");
            long next = After(i);
            Expected.Leave(me);
            return next;
        }
    }
}
