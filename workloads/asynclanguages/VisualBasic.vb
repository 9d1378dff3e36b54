Imports System.Runtime.CompilerServices
Imports System.Threading.Tasks

' Async methods by the compiler of Visual Basic. Compiled twice: optimised, where state machines are values, and not, where they are objects
' (namespace Unoptimised).
Public Class VisualBasic
    Private Const Turns As Integer = 1500000

    Public Shared Async Function VbRoot(gate As Task) As Task(Of Long)
        Return Await VbMiddle(gate) + 1
    End Function

    Private Shared Async Function VbMiddle(gate As Task) As Task(Of Long)
        Dim plain = VbInner(gate)
        Return Await plain.ConfigureAwait(False) + 1
    End Function

    Private Shared Async Function VbInner(gate As Task) As Task(Of Long)
        Await gate
        Return BurnVb() + 1
    End Function

    Public Shared Async Function VbSubRoot(gate As Task) As Task
        Await VbSub(gate)
    End Function

    Private Shared Async Function VbSub(gate As Task) As Task
        Await gate.ConfigureAwait(False)
        BurnVbSub()
    End Function

    Public Shared Function VbLambda(gate As Task) As Task(Of Long)
        Dim lambda As System.Func(Of Task(Of Long)) =
            Async Function()
                Await gate
                Return BurnVbLambda() + 1
            End Function
        Return lambda()
    End Function

    <MethodImpl(MethodImplOptions.NoInlining)>
    Private Shared Function BurnVb() As Long
        Return Burn(1) + 1
    End Function

    <MethodImpl(MethodImplOptions.NoInlining)>
    Private Shared Function BurnVbSub() As Long
        Return Burn(2) + 1
    End Function

    <MethodImpl(MethodImplOptions.NoInlining)>
    Private Shared Function BurnVbLambda() As Long
        Return Burn(3) + 1
    End Function

    <MethodImpl(MethodImplOptions.NoInlining)>
    Private Shared Function Burn(x As Long) As Long
        For i As Integer = 0 To Turns - 1
            x = (x And &HFFFFFFFL) * 31 + i
            x = x Xor (x >> 7)
        Next
        Return x
    End Function
End Class
