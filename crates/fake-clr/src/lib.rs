//! A scripted ICorProfilerInfo that enforces the call rules as the CLR does.
