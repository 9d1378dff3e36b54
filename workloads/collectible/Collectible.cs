using System;
using System.IO;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.Loader;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Loads collectible assemblies, runs them and unloads them, for as long
    /// as it is told: the program's own file into a collectible load context,
    /// and an assembly made by Reflection.Emit. The same addresses hold other
    /// code again and again. With `async` they have async methods too, which
    /// others await that stay.
    /// </summary>
    public static class Collectible
    {
        private sealed class Context : AssemblyLoadContext
        {
            public Context() : base("collectible", isCollectible: true)
            {
            }

            protected override Assembly Load(AssemblyName name) => null;
        }

        public static int Main(string[] args)
        {
            var run = new Run(args);
            byte[] image = File.ReadAllBytes(typeof(Collectible).Assembly.Location);
            var loaded = new Checked("loaded");
            var emitted = new Checked("emitted");
            Console.WriteLine("method Workloads.Plugin.BurnPlugin");
            Console.WriteLine("method EmittedType.BurnEmitted");
            bool awaits = Array.IndexOf(args, "async") >= 0;
            var awaited = new Checked("awaited");
            long rounds = 0;
            WeakReference first = null;
            while (run.More())
            {
                WeakReference context = RunLoaded(image, loaded, awaits ? awaited : null);
                first ??= context;
                emitted.Add(RunEmitted());
                if (++rounds % 8 == 0)
                {
                    GC.Collect();
                    GC.WaitForPendingFinalizers();
                }
            }
            for (int i = 0; first != null && first.IsAlive && i < 20; i++)
            {
                GC.Collect();
                GC.WaitForPendingFinalizers();
            }
            Run.Result("unloads", first != null && !first.IsAlive);
            loaded.Print();
            emitted.Print();
            if (awaits)
            {
                awaited.Print();
            }
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static WeakReference RunLoaded(byte[] image, Checked sum, Checked awaited)
        {
            var context = new Context();
            Assembly assembly = context.LoadFromStream(new MemoryStream(image));
            MethodInfo burn = assembly.GetType("Workloads.Plugin").GetMethod("BurnPlugin");
            var call = (Func<int, int>)burn.CreateDelegate(typeof(Func<int, int>));
            sum.Add(call(300_000));
            if (awaited != null)
            {
                MethodInfo outer = assembly.GetType("Workloads.Plugin").GetMethod("Outer");
                var start = (Func<int, Task<int>>)outer.CreateDelegate(typeof(Func<int, Task<int>>));
                awaited.Add(Await(start).GetAwaiter().GetResult());
            }
            context.Unload();
            return new WeakReference(context, trackResurrection: true);
        }

        /// <summary>One that stays awaits one that goes, and the other way round.</summary>
        private static async Task<int> Await(Func<int, Task<int>> start)
        {
            int first = await start(300_000);
            return first * 31 + await start(200_000).ConfigureAwait(false);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long RunEmitted()
        {
            AssemblyBuilder assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("Emitted"), AssemblyBuilderAccess.RunAndCollect);
            TypeBuilder type = assembly.DefineDynamicModule("Emitted").DefineType("EmittedType", TypeAttributes.Public);
            MethodBuilder method = type.DefineMethod("BurnEmitted", MethodAttributes.Public | MethodAttributes.Static, typeof(int), new[] { typeof(int) });
            ILGenerator il = method.GetILGenerator();
            LocalBuilder x = il.DeclareLocal(typeof(int));
            Label test = il.DefineLabel();
            Label body = il.DefineLabel();
            il.Emit(OpCodes.Br, test);
            il.MarkLabel(body);
            il.Emit(OpCodes.Ldloc, x);
            il.Emit(OpCodes.Ldc_I4, 69069);
            il.Emit(OpCodes.Mul);
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Add);
            il.Emit(OpCodes.Stloc, x);
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Ldc_I4_1);
            il.Emit(OpCodes.Sub);
            il.Emit(OpCodes.Starg_S, (byte)0);
            il.MarkLabel(test);
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Ldc_I4_0);
            il.Emit(OpCodes.Bgt, body);
            il.Emit(OpCodes.Ldloc, x);
            il.Emit(OpCodes.Ret);
            MethodInfo made = type.CreateTypeInfo().GetMethod("BurnEmitted");
            return ((Func<int, int>)made.CreateDelegate(typeof(Func<int, int>)))(300_000);
        }
    }

    /// <summary>What the collectible copy of this assembly is asked to run.</summary>
    public static class Plugin
    {
        public static async Task<int> Outer(int n) => await Inner(n) * 31 + await Inner(n / 2);

        private static async Task<int> Inner(int n)
        {
            await Task.Yield();
            int before = BurnPlugin(n / 2);
            await Task.Run(() => { });
            return before * 31 + BurnPlugin(n / 2);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static int BurnPlugin(int n)
        {
            int x = 1;
            for (int i = 0; i < n; i++)
            {
                x = x * 1664525 + 1013904223;
                x ^= x >> 13;
            }
            return x;
        }
    }
}
