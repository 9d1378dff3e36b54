//! Tests of the call rules on the fake runtime: deadlocks, pins, walks, attach, several CLRs.
//!
//! The two deadlocks are those of the article on the profiling API (see docs/rules.md).

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use corprof::context::{Attach, Callback, NoTrigger, Startup};
use corprof::sys::rules::RuntimeVersion;
use corprof::sys::{CorPrfGcReason, Hresult, ICorProfilerInfo15};
use corprof::*;
use fake_clr::{FakeClr, Ids, Status, WatchedLock};

/// Action in one callback of context `C`.
type Act<C> = dyn Fn(&mut Cx<'_, C>) + Send + Sync;
/// Action in `ThreadDestroyed`.
type ActOnThread = dyn Fn(&mut Cx<'_, Callback>, ThreadKey) + Send + Sync;

/// Actions of a test's profiler, by callback.
#[derive(Default)]
struct Script {
    runtime: OnceLock<Runtime>,
    snapshots: OnceLock<StackSnapshots>,
    on_jit: OnceLock<Box<Act<Callback>>>,
    on_module: OnceLock<Box<Act<Callback>>>,
    on_collection: OnceLock<Box<Act<NoTrigger>>>,
    on_thread_destroyed: OnceLock<Box<ActOnThread>>,
}

struct Profiler(Arc<Script>);

const EVENTS: EventMaskLow = EventMaskLow::MONITOR_JIT_COMPILATION
    .union(EventMaskLow::MONITOR_THREADS)
    .union(EventMaskLow::MONITOR_MODULE_LOADS);

impl Callbacks for Profiler {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        let info = cx.info();
        self.0.runtime.set(info.runtime()).ok();
        let proof = info.enable_stack_snapshots(cx, EVENTS, EventMaskHigh::BASIC_GC)?;
        self.0.snapshots.set(proof).ok();
        Ok(())
    }
    fn initialize_for_attach<'rt>(&self, cx: &mut Cx<'rt, Attach>, data: &[u8]) -> Result<()> {
        assert_eq!(data, b"session 7");
        let info = cx.info();
        self.0.runtime.set(info.runtime()).ok();
        // A call that an attached profiler may not make is refused with its own error.
        assert_eq!(
            info.set_event_mask2(cx, EventMaskLow::MONITOR_ENTERLEAVE, EventMaskHigh::empty()),
            Err(Hresult::CORPROF_E_UNSUPPORTED_FOR_ATTACHING_PROFILER)
        );
        info.set_event_mask2(cx, EVENTS, EventMaskHigh::empty())
    }
    fn jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        _: FunctionId<'rt>,
        _: bool,
    ) -> Result<()> {
        if let Some(f) = self.0.on_jit.get() {
            f(cx);
        }
        Ok(())
    }
    fn module_load_started<'rt>(&self, cx: &mut Cx<'rt, Callback>, _: ModuleId<'rt>) -> Result<()> {
        if let Some(f) = self.0.on_module.get() {
            f(cx);
        }
        Ok(())
    }
    fn garbage_collection_started<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        _: &[bool],
        _: CorPrfGcReason,
    ) -> Result<()> {
        if let Some(f) = self.0.on_collection.get() {
            f(cx);
        }
        Ok(())
    }
    fn thread_destroyed<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        thread: ThreadId<'rt>,
    ) -> Result<()> {
        if let Some(f) = self.0.on_thread_destroyed.get() {
            let key = cx.info().key(thread);
            f(cx, key);
        }
        Ok(())
    }
}

thread_local! {
    static NEXT: std::cell::RefCell<Option<Arc<Script>>> = const { std::cell::RefCell::new(None) };
}

fn create(_: &ClassRequest) -> Result<Box<dyn Callbacks>> {
    let script = NEXT
        .with_borrow_mut(Option::take)
        .ok_or(Hresult::E_UNEXPECTED)?;
    Ok(Box::new(Profiler(script)))
}

fn started() -> (FakeClr, Ids, Arc<Script>) {
    let clr = FakeClr::new(RuntimeVersion::Net8);
    let ids = clr.populate();
    let script = Arc::new(Script::default());
    NEXT.set(Some(script.clone()));
    clr.start(create).unwrap();
    (clr, ids, script)
}

fn set<T: ?Sized>(cell: &OnceLock<Box<T>>, f: Box<T>) {
    assert!(cell.set(f).is_ok());
}

/// Calls `GetClassFromTokenAndTypeArgs`, which may trigger a GC, through the raw layer.
fn class_by_raw_call(clr: &FakeClr, ids: &Ids) -> Hresult {
    let mut class = 0;
    // SAFETY: the fake runtime is live; the arguments are its own ids.
    unsafe {
        ICorProfilerInfo15::get_class_from_token_and_type_args(
            clr.info(),
            ids.module,
            0x0200_0001,
            0,
            std::ptr::null(),
            &mut class,
        )
    }
}

/// The article's examples, with the lock held across the call, which rule 3 forbids. Thread A holds
/// the lock, thread B waits for it in its callback `enter_b`, then A makes the call.
fn with_the_rule_broken(
    clr: &FakeClr,
    ids: &Ids,
    lock: &WatchedLock,
    enter_b: impl FnOnce() + Send,
) -> Hresult {
    let a = clr.add_thread();
    std::thread::scope(|scope| {
        let (holds, go) = channel::<()>();
        scope.spawn(move || {
            go.recv().unwrap();
            enter_b();
        });
        // Thread A is in an ordinary callback.
        let mut answer = Hresult::E_UNEXPECTED;
        clr.on_thread(a, || {
            clr.callback(fake_clr::CallbackMode::Preemptive, |_| {
                answer = lock
                    .with(|| {
                        holds.send(()).unwrap();
                        clr.wait_until_waited_for();
                        class_by_raw_call(clr, ids)
                    })
                    .unwrap();
                Hresult::S_OK
            })
        });
        answer
    })
}

#[test]
fn rule_20_example_1_a_collection_waits_for_the_lock_of_a_thread_that_waits_for_the_collection() {
    let (clr, ids, script) = started();
    let lock = clr.watched_lock();
    let waits = lock.clone();
    set(
        &script.on_collection,
        Box::new(move |_| {
            let _ = waits.with(|| ());
        }),
    );
    let answer = with_the_rule_broken(&clr, &ids, &lock, || {
        clr.on_thread(ids.thread, || clr.collect()).unwrap();
    });
    // A real runtime would hang; the fake reports the deadlock and ends the wait.
    assert_eq!((answer, clr.deadlocks()), (Hresult::E_ABORT, 1));
}

#[test]
fn rule_20_example_2_a_collection_waits_for_a_thread_that_waits_for_the_lock_of_its_own() {
    let (clr, ids, script) = started();
    let lock = clr.watched_lock();
    let waits = lock.clone();
    set(
        &script.on_module,
        Box::new(move |_| {
            let _ = waits.with(|| ());
        }),
    );
    clr.collect_at_next_chance();
    let answer = with_the_rule_broken(&clr, &ids, &lock, || {
        clr.on_thread(ids.thread, || clr.module_load_started(ids.module));
    });
    assert_eq!((answer, clr.deadlocks()), (Hresult::E_ABORT, 1));
}

/// The same through the typed layer. The guard must end before the call, or the code would not
/// compile. B waits for the lock while A holds it, and both finish.
fn with_the_rule_kept(
    clr: &FakeClr,
    ids: &Ids,
    script: &Script,
    lock: Arc<AgentLock<Vec<u32>>>,
    b_waits: std::sync::mpsc::Receiver<()>,
    enter_b: impl FnOnce() + Send,
) {
    let a = clr.add_thread();
    let (holds, go) = channel::<()>();
    let b_waits = Mutex::new(b_waits);
    let key = ids.module;
    set(
        &script.on_jit,
        Box::new(move |cx| {
            let info = cx.info();
            // SAFETY: this is an id of the fake runtime, for a module.
            let key = unsafe { ModuleKey::from_parts(info.index(), key) };
            let module = info.id(key.unwrap()).unwrap();
            let mut guard = lock.lock(cx);
            guard.push(1);
            holds.send(()).unwrap();
            b_waits.lock().unwrap().recv().unwrap();
            guard.push(2);
            drop(guard);
            let class =
                info.get_class_from_token_and_type_args(cx, module, Token(0x0200_0001), &[]);
            assert!(matches!(class, Ok(Some(_))), "{class:?}");
            assert_eq!(lock.lock(cx)[..2], [1, 2]);
        }),
    );
    std::thread::scope(|scope| {
        scope.spawn(move || {
            go.recv().unwrap();
            enter_b();
        });
        let answer = clr.on_thread(a, || clr.jit_compilation_started(ids.function));
        assert_eq!(answer, Hresult::S_OK);
    });
    assert_eq!((clr.deadlocks(), clr.unsupported()), (0, 0));
}

#[test]
fn rule_20_both_examples_finish_when_no_lock_is_held_across_the_call() {
    let waiting = |sender: Sender<()>, lock: Arc<AgentLock<Vec<u32>>>| {
        let sender = Mutex::new(sender);
        move |push: &mut dyn FnMut(&AgentLock<Vec<u32>>)| {
            sender.lock().unwrap().send(()).unwrap();
            push(&lock);
        }
    };

    let (clr, ids, script) = started();
    let lock = Arc::new(AgentLock::new(Vec::new()));
    let (sender, receiver) = channel();
    let b = waiting(sender, lock.clone());
    set(
        &script.on_collection,
        Box::new(move |cx| b(&mut |lock| lock.lock(cx).push(3))),
    );
    with_the_rule_kept(&clr, &ids, &script, lock, receiver, || {
        clr.on_thread(ids.thread, || clr.collect()).unwrap();
    });

    let (clr, ids, script) = started();
    let lock = Arc::new(AgentLock::new(Vec::new()));
    let (sender, receiver) = channel();
    let b = waiting(sender, lock.clone());
    set(
        &script.on_module,
        Box::new(move |cx| b(&mut |lock| lock.lock(cx).push(3))),
    );
    clr.collect_at_next_chance();
    with_the_rule_kept(&clr, &ids, &script, lock, receiver, || {
        clr.on_thread(ids.thread, || clr.module_load_started(ids.module));
    });
}

#[test]
fn rule_19_thread_destroyed_waits_for_the_walk() {
    let (clr, ids, script) = started();
    let pins = Arc::new(ThreadPins::new());
    let walked = Arc::new(AtomicBool::new(false));
    let (entered, was_entered) = channel();
    let entered = Mutex::new(entered);
    let (of_callback, done) = (pins.clone(), walked.clone());
    set(
        &script.on_thread_destroyed,
        Box::new(move |cx, thread| {
            entered.lock().unwrap().send(()).unwrap();
            of_callback.destroyed(cx, thread);
            // The walk had ended when the callback continued.
            assert!(done.load(Ordering::SeqCst));
        }),
    );
    let runtime = script.runtime.get().unwrap();
    // SAFETY: this is an id of the fake runtime, for a thread.
    let key = unsafe { ThreadKey::from_parts(runtime.index(), ids.thread.0) }.unwrap();
    assert!(pins.pin(key).is_none(), "not created yet");
    pins.created(key);
    let pin = pins.pin(key).unwrap();
    std::thread::scope(|scope| {
        let destroyed =
            scope.spawn(|| clr.on_thread(ids.thread, || clr.thread_destroyed(ids.thread)));
        was_entered.recv().unwrap();
        walked.store(true, Ordering::SeqCst);
        drop(pin);
        assert_eq!(destroyed.join().unwrap(), Hresult::S_OK);
    });
    assert_eq!(runtime.panics(), 0);
    assert!(pins.pin(key).is_none(), "gone");
}

/// Runs `f` on a thread of the profiler.
fn on_agent_thread<R: Send + 'static>(
    script: &Script,
    f: impl FnOnce(&mut Cx<'_, corprof::context::AgentThread>, &StackSnapshots) -> R + Send + 'static,
) -> R {
    let runtime = script.runtime.get().unwrap().clone();
    let proof = *script.snapshots.get().unwrap();
    spawn_agent_thread("agent", move |agent| {
        agent.enter(&runtime, |cx| f(cx, &proof))
    })
    .unwrap()
    .join()
    .unwrap()
}

#[test]
fn rule_16_a_target_with_a_lock_of_the_runtimes_is_refused_and_the_runtime_goes_on() {
    let (clr, ids, script) = started();
    let other = clr.add_thread();
    clr.set_stack(other, &[ids.function, 0]);
    clr.set_holds_runtime_lock(ids.thread, true);
    // Busy twice, then suspended: bounded retries.
    clr.set_busy(2);
    let walks = on_agent_thread(&script, |cx, proof| {
        let info = cx.info();
        let mut suspension = info
            .suspend_runtime_with_retries(cx, 5, Duration::ZERO)
            .unwrap();
        assert_eq!(suspension.retries(), 2);
        let mut walks = Vec::new();
        for thread in suspension.enum_threads().unwrap() {
            let mut frames = 0;
            let walked = suspension.walk(proof, thread, |_, _| {
                frames += 1;
                ControlFlow::<()>::Continue(())
            });
            walks.push((walked.err(), frames));
        }
        walks
    });
    assert_eq!(walks, [(Some(WalkError::Unsafe), 0), (None, 2)]);
    assert!(!clr.is_suspended(), "the value's end resumed it");

    clr.set_busy(3);
    let gave_up = on_agent_thread(&script, |cx, _| {
        cx.info()
            .suspend_runtime_with_retries(cx, 1, Duration::ZERO)
            .err()
    });
    assert_eq!(gave_up, Some(SuspendError::InProgress));
}

#[test]
fn rule_12_a_walk_atop_the_runtimes_own_code_is_refused_without_a_seed() {
    let (clr, ids, script) = started();
    // As when the runtime compiles or collects on that thread.
    clr.set_in_runtime_code(ids.thread, true);
    let body = clr.function(ids.function).unwrap().bodies[0].clone();
    let walks = on_agent_thread(&script, move |cx, proof| {
        let info = cx.info();
        let mut suspension = info.suspend_runtime(cx).unwrap();
        let thread = suspension.enum_threads().unwrap()[0];
        let mut frames = 0;
        let unseeded = suspension.walk(proof, thread, |_, _| {
            frames += 1;
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(frames, 0);
        let registers = Registers {
            rip: body.start as u64 + 0x10,
            rsp: 0x7000,
            ..Registers::default()
        };
        // SAFETY: the fake runtime accepts any frame of its own code.
        let seed = unsafe { Seed::new(registers, body, 0x6000..0x8000) };
        let seeded = suspension.walk_seeded(proof, thread, &seed, |_, _, _| {
            frames += 1;
            ControlFlow::<()>::Continue(())
        });
        (unseeded, seeded, frames)
    });
    assert_eq!(
        walks,
        (
            Err(WalkError::UnmanagedContext),
            Ok(ControlFlow::Continue(())),
            3
        )
    );
}

#[test]
#[cfg(debug_assertions)]
fn rule_18_a_thread_that_has_run_managed_code_is_caught_when_it_suspends() {
    let (clr, ids, script) = started();
    let runtime = script.runtime.get().unwrap().clone();
    let managed = clr.clone();
    let suspended = spawn_agent_thread("agent", move |agent| {
        let before = agent.enter(&runtime, |cx| cx.info().suspend_runtime(cx).is_ok());
        // This thread runs managed code despite the rule.
        let after = managed.on_thread(ids.thread, || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                agent.enter(&runtime, |cx| cx.info().suspend_runtime(cx).is_ok())
            }))
        });
        (before, after.is_err())
    })
    .unwrap()
    .join()
    .unwrap();
    assert_eq!(suspended, (true, true));
    assert!(!clr.is_suspended());
}

#[test]
fn rule_09_a_walk_is_stopped_by_its_callback_and_a_panic_in_it_comes_out() {
    let (clr, _, script) = started();
    let stopped = on_agent_thread(&script, move |cx, proof| {
        let info = cx.info();
        let mut suspension = info.suspend_runtime(cx).unwrap();
        let thread = suspension.enum_threads().unwrap()[0];
        let stopped = suspension.walk(proof, thread, |_, frame| match frame {
            SnapshotFrame::Managed { .. } => ControlFlow::Continue(()),
            SnapshotFrame::UnmanagedRun { .. } => ControlFlow::Break("a run"),
        });
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = suspension.walk(proof, thread, |_, _| -> ControlFlow<()> {
                std::panic::panic_any(7u8)
            });
        }));
        (stopped, *panicked.unwrap_err().downcast::<u8>().unwrap())
    });
    assert_eq!(stopped, (Ok(ControlFlow::Break("a run")), 7));
    // A bad seed does not reach the runtime.
    let refused = on_agent_thread(&script, move |cx, proof| {
        let info = cx.info();
        let registers = Registers {
            rip: 0x1000,
            rsp: 0x7000,
            ..Registers::default()
        };
        // SAFETY: the seed is refused, because 0x1000 is not managed code.
        let seed = unsafe { Seed::new(registers, 0x1000..0x1100, 0x6000..0x8000) };
        info.walk_seeded(cx, proof, &seed, |_, _, _| ControlFlow::<()>::Continue(()))
    });
    assert_eq!(refused, Err(WalkError::Seed(SeedRefused::NotManaged)));
    assert!(!clr.is_suspended());
}

#[test]
fn attach_and_detach() {
    let clr = FakeClr::new(RuntimeVersion::Net8);
    let ids = clr.populate();
    let script = Arc::new(Script::default());
    NEXT.set(Some(script.clone()));
    clr.attach(create, b"session 7").unwrap();
    assert_eq!(clr.status(), Status::Active);
    let again = clr.attach(create, b"session 8");
    assert_eq!(again, Err(Hresult::CORPROF_E_PROFILER_ALREADY_ACTIVE));

    let answers = Arc::new(Mutex::new(Vec::new()));
    let of_callback = answers.clone();
    set(
        &script.on_jit,
        Box::new(move |cx| {
            let info = cx.info();
            let mut answers = of_callback.lock().unwrap();
            answers.push(info.get_notified_exception_clause_info(cx).err());
            answers.push(
                info.request_profiler_detach(cx, Duration::from_secs(1))
                    .err(),
            );
            answers.push(info.get_event_mask2(cx).err());
        }),
    );
    clr.on_thread(ids.thread, || clr.jit_compilation_started(ids.function));
    assert_eq!(
        *answers.lock().unwrap(),
        [
            Some(Hresult::CORPROF_E_UNSUPPORTED_FOR_ATTACHING_PROFILER),
            None,
            Some(Hresult::CORPROF_E_PROFILER_DETACHING),
        ]
    );
    clr.finish_detach();
    assert_eq!(clr.status(), Status::None);
}

#[test]
fn a_refusal_is_quiet_and_the_runtime_starts_without_a_profiler() {
    let clr = FakeClr::new(RuntimeVersion::Core31);
    let answer = clr.start(|_| Err(Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION));
    assert_eq!(answer, Err(Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION));
    assert_eq!(clr.status(), Status::None);
}

#[test]
fn runtimes_that_start_at_once_get_a_profiler_each_and_no_id_crosses() {
    static CREATED: AtomicU32 = AtomicU32::new(0);
    let scripts: Vec<(FakeClr, Ids, Arc<Script>)> = std::thread::scope(|scope| {
        let barrier = Arc::new(std::sync::Barrier::new(8));
        let handles: Vec<_> = (0..8)
            .map(|_| {
                let barrier = barrier.clone();
                scope.spawn(move || {
                    barrier.wait();
                    CREATED.fetch_add(1, Ordering::Relaxed);
                    started()
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    });
    assert_eq!(CREATED.load(Ordering::Relaxed), 8);
    let indices: BTreeSet<RuntimeIndex> = scripts
        .iter()
        .map(|(_, _, script)| script.runtime.get().unwrap().index())
        .collect();
    assert_eq!(indices.len(), 8);

    let [(a, of_a, script_a), (b, _, script_b), ..] = &scripts[..] else {
        panic!("eight");
    };
    let runtime_a = script_a.runtime.get().unwrap().index();
    // SAFETY: this is an id of the fake runtime, for a function.
    let key = unsafe { FunctionKey::from_parts(runtime_a, of_a.function) }.unwrap();
    // The key's runtime accepts it, the other refuses it.
    let there = on_agent_thread(script_a, move |cx, _| {
        let function = cx.info().id(key).unwrap();
        cx.info().get_function_info2(cx, function).is_ok()
    });
    let here = on_agent_thread(script_b, move |cx, _| cx.info().id(key).is_none());
    assert!(there && here);
    // A [`StackSnapshots`] is not valid for the other runtime either.
    let proof = *script_a.snapshots.get().unwrap();
    let walked = on_agent_thread(script_b, move |cx, _| {
        let info = cx.info();
        info.walk_current(cx, &proof, |_, _| ControlFlow::<()>::Continue(()))
    });
    assert_eq!(walked, Err(WalkError::OtherRuntime));
    assert!(a.crashes().is_empty() && b.crashes().is_empty());
    // Through the raw layer it would be a crash.
    let mut token = 0;
    let zero = std::ptr::null_mut();
    // SAFETY: the fake runtime checks the id; a real one would not.
    let answer = unsafe {
        ICorProfilerInfo15::get_function_info(b.info(), of_a.function, zero, zero, &mut token)
    };
    assert_eq!(answer, Hresult::E_UNEXPECTED);
    assert_eq!(b.crashes().len(), 1);
}
