using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>Loops of the class library, looked up by name: .NET Core 3.1 has neither.</summary>
    public static partial class AsyncChains
    {
        /// <summary>From .NET 6 on. From 11 on the caller of its workers is not known (docs/async.md).</summary>
        private static readonly Func<IEnumerable<int>, Func<int, CancellationToken, ValueTask>, Task> ForEachAsync =
            Environment.Version.Major >= 11
                ? null
                : Loop<Func<IEnumerable<int>, Func<int, CancellationToken, ValueTask>, Task>>(typeof(Parallel), "ForEachAsync", typeof(int));

        /// <summary>From .NET 9 on.</summary>
        private static readonly Func<IEnumerable<Task<long>>, IAsyncEnumerable<Task<long>>> WhenEach =
            Loop<Func<IEnumerable<Task<long>>, IAsyncEnumerable<Task<long>>>>(typeof(Task), "WhenEach", typeof(long));

        private static T Loop<T>(Type type, string name, Type element)
            where T : Delegate
        {
            Type[] parameters = typeof(T).GetMethod("Invoke").GetParameters().Select(one => one.ParameterType).ToArray();
            IEnumerable<MethodInfo> named = type.GetMethods().Where(one => one.Name == name && one.IsGenericMethodDefinition);
            IEnumerable<MethodInfo> made = named.Select(one => one.MakeGenericMethod(element));
            MethodInfo found = made.FirstOrDefault(one => one.GetParameters().Select(known => known.ParameterType).SequenceEqual(parameters));
            return (T)found?.CreateDelegate(typeof(T));
        }

        private static async Task<long> EachRoot()
        {
            Truth.Enter(nameof(EachRoot));
            await ForEachAsync(new[] { 7 }, EachBody);
            return 1;
        }

        private static async ValueTask EachBody(int item, CancellationToken stop)
        {
            Truth.Enter(nameof(EachBody));
            await Truth.Watch(EachInner());
        }

        private static async Task<long> EachInner()
        {
            Truth.Enter(nameof(EachInner));
            await Truth.Gate;
            return BurnEach() + 1;
        }

        private static async Task<long> WhenEachRoot()
        {
            Truth.Enter(nameof(WhenEachRoot));
            long sum = 0;
            await foreach (Task<long> task in WhenEach(new[] { WhenEachInner() }))
            {
                sum += await task;
            }
            return sum;
        }

        private static async Task<long> WhenEachInner()
        {
            Truth.Enter(nameof(WhenEachInner));
            await Truth.Gate;
            return BurnWhenEach() + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnEach() => Truth.Burn(nameof(BurnEach)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnWhenEach() => Truth.Burn(nameof(BurnWhenEach)) + 1;
    }
}
