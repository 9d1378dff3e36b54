using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>A number to add up, as a value type and as a reference type.</summary>
    public interface INumber
    {
        long Value { get; }
    }

    public struct SmallNumber : INumber
    {
        public long Value => 3;
    }

    public sealed class BigNumber : INumber
    {
        public long Value => 5;
    }

    public sealed class OtherNumber : INumber
    {
        public long Value => 7;
    }

    /// <summary>A generic type with a generic method and a nested generic type.</summary>
    public class GenericBox<T> where T : INumber, new()
    {
        private readonly T item = new T();

        [MethodImpl(MethodImplOptions.NoInlining)]
        public long SpinBox(int n)
        {
            long x = 1;
            for (int i = 0; i < n; i++)
            {
                x = x * 31 + item.Value;
                x ^= x >> 7;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public long SpinWith<TOther>(TOther other, int n) where TOther : INumber
        {
            long x = 1;
            for (int i = 0; i < n; i++)
            {
                x = x * 37 + item.Value + other.Value;
                x ^= x >> 9;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public virtual long SpinVirtual<TOther>(TOther other, int n) where TOther : INumber
        {
            return SpinWith(other, n) + 1;
        }

        public class InnerBox<TInner>
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public long SpinInner(Dictionary<string, List<TInner>> shape, T item, int n)
            {
                long x = shape.Count;
                for (int i = 0; i < n; i++)
                {
                    x = x * 41 + item.Value;
                    x ^= x >> 11;
                }
                return x;
            }
        }
    }

    /// <summary>Generic methods and types over value and reference types.</summary>
    public static class Generic
    {
        private const int Turns = 300_000;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            while (run.More())
            {
                check.Add(GenericRound());
            }
            check.Print();
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long GenericRound()
        {
            long x = new GenericBox<SmallNumber>().SpinBox(Turns);
            x ^= new GenericBox<BigNumber>().SpinBox(Turns);
            x ^= new GenericBox<OtherNumber>().SpinWith(new BigNumber(), Turns);
            x ^= new GenericBox<SmallNumber>().SpinWith(new SmallNumber(), Turns);
            x ^= new GenericBox<BigNumber>().SpinVirtual(new OtherNumber(), Turns);
            x ^= new GenericBox<BigNumber>.InnerBox<int>().SpinInner(new Dictionary<string, List<int>>(), new BigNumber(), Turns);
            x ^= SpinStatic<string, SmallNumber>("text", new SmallNumber(), Turns);
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long SpinStatic<TText, TNumber>(TText text, TNumber number, int n) where TNumber : INumber
        {
            long x = text.ToString().Length;
            for (int i = 0; i < n; i++)
            {
                x = x * 43 + number.Value;
                x ^= x >> 5;
            }
            return x;
        }
    }
}
