using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>The leaves. None ends in a call that a compiler could make a jump of.</summary>
    public static partial class AsyncChains
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnTask() => Truth.Burn(nameof(BurnTask)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnPlain() => Truth.Burn(nameof(BurnPlain)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnValue() => Truth.Burn(nameof(BurnValue)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnVoid() => Truth.Burn(nameof(BurnVoid)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnItems() => Truth.Burn(nameof(BurnItems)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnBetween() => Truth.Burn(nameof(BurnBetween)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnFree() => Truth.Burn(nameof(BurnFree)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnContext() => Truth.Burn(nameof(BurnContext)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnScheduler() => Truth.Burn(nameof(BurnScheduler)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnYield() => Truth.Burn(nameof(BurnYield)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnDelay() => Truth.Burn(nameof(BurnDelay)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnSource() => Truth.Burn(nameof(BurnSource)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnLaterSource() => Truth.Burn(nameof(BurnLaterSource)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnRun() => Truth.Burn(nameof(BurnRun)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnCalled() => Truth.Burn(nameof(BurnCalled)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnLambda() => Truth.Burn(nameof(BurnLambda)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnLocal() => Truth.Burn(nameof(BurnLocal)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnContinue() => Truth.Burn(nameof(BurnContinue)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnUnwrap() => Truth.Burn(nameof(BurnUnwrap)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnAllFirst() => Truth.Burn(nameof(BurnAllFirst)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnAllSecond() => Truth.Burn(nameof(BurnAllSecond)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnAny() => Truth.Burn(nameof(BurnAny)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnLock() => Truth.Burn(nameof(BurnLock)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnChannel() => Truth.Burn(nameof(BurnChannel)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnList() => Truth.Burn(nameof(BurnList)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnGenericRef() => Truth.Burn(nameof(BurnGenericRef)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnGenericValue() => Truth.Burn(nameof(BurnGenericValue)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnDepth1() => Truth.Burn(nameof(BurnDepth1)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnDepth10() => Truth.Burn(nameof(BurnDepth10)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnDepth50() => Truth.Burn(nameof(BurnDepth50)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnDepth200() => Truth.Burn(nameof(BurnDepth200)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnCatch() => Truth.Burn(nameof(BurnCatch)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnFinally() => Truth.Burn(nameof(BurnFinally)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnCascade() => Truth.Burn(nameof(BurnCascade)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnAwaiter() => Truth.Burn(nameof(BurnAwaiter)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnAfter() => Truth.Burn(nameof(BurnAfter)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnFirst() => Truth.Burn(nameof(BurnFirst)) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnWait() => Truth.Burn(nameof(BurnWait)) + 1;
    }
}
