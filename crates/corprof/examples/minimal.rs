//! Example profiler: writes the name of each JIT-compiled method and the number of threads.
//!
//! ```sh
//! cargo build -p corprof --example minimal
//! CORECLR_ENABLE_PROFILING=1 \
//! CORECLR_PROFILER={DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21} \
//! CORECLR_PROFILER_PATH=$PWD/target/debug/examples/libminimal.so \
//! MINIMAL_OUT=/tmp/minimal.txt dotnet app.dll
//! ```

use std::io::Write as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;

use corprof::context::{AgentThread, Callback, Startup};
use corprof::{
    AgentCx, Callbacks, ClassRequest, Cx, EventMaskHigh, EventMaskLow, FunctionId, FunctionKey,
    Guid, Hresult, Result, Runtime, ThreadId,
};

const CLSID: Guid = Guid::new("DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21");

corprof::export_profiler!(create);

/// Creates one profiler for each CLR of the process.
fn create(request: &ClassRequest) -> Result<Box<dyn Callbacks>> {
    if request.clsid != CLSID {
        return Err(Hresult::CLASS_E_CLASSNOTAVAILABLE);
    }
    Ok(Box::new(Minimal::default()))
}

/// Facts from callbacks, for the profiler's own thread.
enum Fact {
    Compiled(FunctionKey),
    Thread,
    End,
}

#[derive(Default)]
struct Minimal {
    facts: OnceLock<Sender<Fact>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Minimal {
    fn tell(&self, fact: Fact) -> Result<()> {
        let facts = self.facts.get().ok_or(Hresult::E_UNEXPECTED)?;
        facts.send(fact).map_err(|_| Hresult::E_UNEXPECTED)
    }
}

impl Callbacks for Minimal {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        let info = cx.info();
        info.set_event_mask2(
            cx,
            EventMaskLow::MONITOR_JIT_COMPILATION | EventMaskLow::MONITOR_THREADS,
            EventMaskHigh::empty(),
        )?;
        let (sender, receiver) = channel();
        self.facts.set(sender).map_err(|_| Hresult::E_UNEXPECTED)?;
        let runtime = info.runtime();
        let thread = corprof::spawn_agent_thread("minimal", move |agent| {
            report(agent, &runtime, &receiver);
        })
        .map_err(|_| Hresult::E_FAIL)?;
        *self.thread.lock().map_err(|_| Hresult::E_FAIL)? = Some(thread);
        Ok(())
    }

    fn jit_compilation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        status: Hresult,
        _is_safe_to_block: bool,
    ) -> Result<()> {
        if status.is_err() {
            return Ok(());
        }
        // An id is valid in this callback only; its key can be stored.
        self.tell(Fact::Compiled(cx.info().key(function)))
    }

    fn thread_created<'rt>(&self, _: &mut Cx<'rt, Callback>, _: ThreadId<'rt>) -> Result<()> {
        self.tell(Fact::Thread)
    }

    fn shutdown<'rt>(&self, _: &mut Cx<'rt, Callback>) -> Result<()> {
        self.tell(Fact::End)?;
        let thread = self.thread.lock().map_err(|_| Hresult::E_FAIL)?.take();
        if let Some(thread) = thread {
            thread.join().map_err(|_| Hresult::E_FAIL)?;
        }
        Ok(())
    }
}

/// The profiler's own thread, where every call is synchronous: resolves names of methods.
fn report(agent: &mut AgentCx, runtime: &Runtime, facts: &Receiver<Fact>) {
    let Some(path) = std::env::var_os("MINIMAL_OUT") else {
        return;
    };
    let Ok(mut out) = std::fs::File::create(path) else {
        return;
    };
    let mut threads = 0;
    for fact in facts {
        match fact {
            Fact::Thread => threads += 1,
            Fact::End => break,
            Fact::Compiled(function) => {
                let name = agent.enter(runtime, |cx| name(cx, function));
                if let Ok(Some(name)) = name {
                    let _ = writeln!(out, "compiled {name}");
                }
            }
        }
    }
    let _ = writeln!(out, "threads {threads}");
}

/// `Namespace.Type.Method`. `None` if the runtime does not have the data yet.
fn name(cx: &mut Cx<'_, AgentThread>, function: FunctionKey) -> Result<Option<String>> {
    let info = cx.info();
    let Some(function) = info.id(function) else {
        return Ok(None);
    };
    let Some((metadata, token)) = info.get_token_and_meta_data_from_function(cx, function)? else {
        return Ok(None);
    };
    let method = metadata.get_method_props(token)?;
    let class = metadata.get_type_def_props(method.class)?;
    Ok(Some(format!("{}.{}", class.name, method.name)))
}
