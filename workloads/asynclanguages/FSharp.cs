using System;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>As FSharp.Core has it: what a `task { }` of F# has beside its state.</summary>
    public struct TaskStateMachineData<T>
    {
        public T Result;
        public AsyncTaskMethodBuilder<T> MethodBuilder;
    }

    /// <summary>
    /// State machines as the compiler of F# makes them of `task { }` (its own tests of the code that it emits: TaskGeneratedCode.fs), written in C#: that compiler
    /// cannot be had from the registries that set-up uses.
    /// </summary>
    public static class FSharp
    {
        private const int Turns = 1_500_000;

        private struct Number : IAsyncStateMachine
        {
            public TaskStateMachineData<long> Data;
            public int ResumptionPoint;
            public Func<Task<long>> Awaited;
            public Func<long> Last;
            private TaskAwaiter<long> awaiter;

            public void MoveNext()
            {
                Exception thrown = null;
                try
                {
                    bool done = true;
                    if (ResumptionPoint != 1)
                    {
                        awaiter = Awaited().GetAwaiter();
                        if (!awaiter.IsCompleted)
                        {
                            ResumptionPoint = 1;
                            done = false;
                        }
                    }
                    if (done)
                    {
                        Data.Result = awaiter.GetResult() + Last();
                        Data.MethodBuilder.SetResult(Data.Result);
                    }
                    else
                    {
                        Data.MethodBuilder.AwaitUnsafeOnCompleted(ref awaiter, ref this);
                    }
                }
                catch (Exception e)
                {
                    thrown = e;
                }
                if (thrown != null)
                {
                    Data.MethodBuilder.SetException(thrown);
                }
            }

            public void SetStateMachine(IAsyncStateMachine machine) => Data.MethodBuilder.SetStateMachine(machine);
        }

        private struct Text : IAsyncStateMachine
        {
            public TaskStateMachineData<string> Data;
            public int ResumptionPoint;
            public Task<long> Awaited;
            private TaskAwaiter<long> awaiter;

            public void MoveNext()
            {
                Exception thrown = null;
                try
                {
                    bool done = true;
                    if (ResumptionPoint != 1)
                    {
                        awaiter = Awaited.GetAwaiter();
                        if (!awaiter.IsCompleted)
                        {
                            ResumptionPoint = 1;
                            done = false;
                        }
                    }
                    if (done)
                    {
                        Data.Result = (awaiter.GetResult() + BurnFsText()).ToString();
                        Data.MethodBuilder.SetResult(Data.Result);
                    }
                    else
                    {
                        Data.MethodBuilder.AwaitUnsafeOnCompleted(ref awaiter, ref this);
                    }
                }
                catch (Exception e)
                {
                    thrown = e;
                }
                if (thrown != null)
                {
                    Data.MethodBuilder.SetException(thrown);
                }
            }

            public void SetStateMachine(IAsyncStateMachine machine) => Data.MethodBuilder.SetStateMachine(machine);
        }

        /// <summary>`task { let! x = awaited () in return x + last () }`</summary>
        private static Task<long> Then(Func<Task<long>> awaited, Func<long> last)
        {
            var machine = default(Number);
            machine.Awaited = awaited;
            machine.Last = last;
            machine.Data.MethodBuilder = AsyncTaskMethodBuilder<long>.Create();
            machine.Data.MethodBuilder.Start(ref machine);
            return machine.Data.MethodBuilder.Task;
        }

        /// <summary>A number that two state machines of the same kind make, one of which awaits the other.</summary>
        public static Task<long> FsNumber(Task<long> gate) => Then(() => Then(() => gate, BurnFs), () => 1);

        /// <summary>One that calls a function given as a value.</summary>
        public static Task<long> FsClosure(Task<long> gate, Func<long> closure) => Then(() => gate, closure);

        /// <summary>
        /// What the compiler of F# makes of such a function: a class that is named after the function and line it stands in, with a method
        /// `Invoke`. C# has no such names.
        /// </summary>
        public static Func<long> Closure()
        {
            AssemblyBuilder assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("Shop"), AssemblyBuilderAccess.Run);
            TypeBuilder shop = assembly.DefineDynamicModule("Shop").DefineType("Workloads.Shop", TypeAttributes.Public);
            TypeBuilder closure = shop.DefineNestedType("checkout@12", TypeAttributes.NestedPublic);
            MethodBuilder invoke = closure.DefineMethod("Invoke", MethodAttributes.Public, typeof(long), Type.EmptyTypes);
            // Where the program runs for long, the delegate's usual target is inlined into its caller.
            invoke.SetImplementationFlags(MethodImplAttributes.NoInlining);
            ILGenerator il = invoke.GetILGenerator();
            il.Emit(OpCodes.Call, typeof(FSharp).GetMethod(nameof(BurnFsClosure)));
            il.Emit(OpCodes.Ldc_I4_1);
            il.Emit(OpCodes.Conv_I8);
            il.Emit(OpCodes.Add);
            il.Emit(OpCodes.Ret);
            shop.CreateType();
            object made = Activator.CreateInstance(closure.CreateType());
            return (Func<long>)Delegate.CreateDelegate(typeof(Func<long>), made, "Invoke");
        }

        /// <summary>One whose result is an object.</summary>
        public static Task<string> FsText(Task<long> gate)
        {
            var machine = default(Text);
            machine.Awaited = gate;
            machine.Data.MethodBuilder = AsyncTaskMethodBuilder<string>.Create();
            machine.Data.MethodBuilder.Start(ref machine);
            return machine.Data.MethodBuilder.Task;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnFs() => Spin.For(3, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long BurnFsClosure() => Spin.For(5, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnFsText() => Spin.For(4, Turns) + 1;
    }
}
