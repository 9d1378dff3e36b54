#if MIXED
namespace System.Runtime.CompilerServices
{
    /// <summary>
    /// Says whether an async method is compiled with runtime async, whatever the compiler's options
    /// say. The runtime's own is internal (11.0.0).
    /// </summary>
    [AttributeUsage(AttributeTargets.Method)]
    internal sealed class RuntimeAsyncMethodGenerationAttribute : Attribute
    {
        public RuntimeAsyncMethodGenerationAttribute(bool runtimeAsync)
        {
            RuntimeAsync = runtimeAsync;
        }

        public bool RuntimeAsync { get; }
    }
}
#endif
