using System;
using System.Reflection;
using System.Reflection.Emit;

namespace Workloads
{
    /// <summary>
    /// Two methods that call each other by the `.tail` prefix, which C# does
    /// not write: `Workloads.Tails.Ping(n)` is n jumps long and never deeper
    /// than one frame.
    /// </summary>
    public static class TailCalls
    {
        public static Func<long, long> Make()
        {
            AssemblyBuilder assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("tails"), AssemblyBuilderAccess.Run);
            TypeBuilder type = assembly.DefineDynamicModule("tails").DefineType("Workloads.Tails", TypeAttributes.Public);
            MethodBuilder ping = Define(type, "Ping");
            MethodBuilder pong = Define(type, "Pong");
            Fill(ping, pong, "Workloads.Tails.Ping");
            Fill(pong, ping, "Workloads.Tails.Pong");
            MethodInfo made = type.CreateTypeInfo().GetMethod("Ping");
            return (Func<long, long>)made.CreateDelegate(typeof(Func<long, long>));
        }

        private static MethodBuilder Define(TypeBuilder type, string name)
        {
            return type.DefineMethod(name, MethodAttributes.Public | MethodAttributes.Static, typeof(long), new[] { typeof(long) });
        }

        private static void Fill(MethodBuilder method, MethodInfo other, string name)
        {
            MethodInfo enter = typeof(Expected).GetMethod(nameof(Expected.Enter));
            MethodInfo leave = typeof(Expected).GetMethod(nameof(Expected.Leave));
            ILGenerator il = method.GetILGenerator();
            Label more = il.DefineLabel();
            il.Emit(OpCodes.Ldstr, name);
            il.Emit(OpCodes.Call, enter);
            // It is gone when the other one begins.
            il.Emit(OpCodes.Call, leave);
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Brtrue, more);
            il.Emit(OpCodes.Ldc_I8, 7L);
            il.Emit(OpCodes.Ret);
            il.MarkLabel(more);
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Ldc_I8, 1L);
            il.Emit(OpCodes.Sub);
            il.Emit(OpCodes.Tailcall);
            il.Emit(OpCodes.Call, other);
            il.Emit(OpCodes.Ret);
        }
    }
}
