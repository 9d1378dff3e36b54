//! Test of [`corprof::MetadataEmit`]: defines one item of each kind and reads it back.

use std::fmt::{Debug, Display};

use corprof::context::Callback;
use corprof::il::{Convention, LocalSignature, MethodSignature, Type};
use corprof::{Cx, Hresult, ModuleId, Result, Token};

/// Defines each item and returns its table and its metadata as text.
pub(crate) fn define<'rt>(
    cx: &mut Cx<'rt, Callback>,
    module: ModuleId<'rt>,
    say: &dyn Fn(&dyn Display),
) -> Result<()> {
    let info = cx.info();
    let incomplete = Hresult::CORPROF_E_DATAINCOMPLETE;
    let emit = info.get_module_meta_data_emit(cx, module)?;
    let emit = emit.ok_or(incomplete)?;
    let import = info.get_module_meta_data(cx, module)?.ok_or(incomplete)?;
    let tell = |what: &str, token: Token, read: &dyn Debug| {
        say(&format_args!(
            "token {what} {:#04x} {read:?}",
            token.table()
        ));
    };

    let calli = MethodSignature::new(Convention::C, Type::INT64, vec![Type::INT32]);
    let token = emit.calli(&calli)?;
    tell("calli", token, &import.get_sig_from_token(token)?);
    let same = emit.calli(&calli)?;
    say(&format_args!("token same {}", same == token));
    let locals = LocalSignature {
        locals: vec![Type::INT64, Type::INT_PTR],
    };
    let token = emit.locals(&locals)?;
    tell("locals", token, &import.get_sig_from_token(token)?);

    let assembly = emit.define_assembly_ref("Probed", [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8])?;
    tell("assembly", assembly, &());
    let class = emit.define_type_ref_by_name(assembly, "Probes.Probe")?;
    let about = import.get_type_ref_props(class)?;
    tell("type", class, &(about.name, about.scope == assembly));
    let listed = import.enum_type_refs()?.contains(&class);
    say(&format_args!("token listed {listed}"));
    let nested = emit.define_type_ref_by_name(class, "Inner")?;
    let about = import.get_type_ref_props(nested)?;
    tell("nested", nested, &(about.name, about.scope == class));
    let signature = [0x10, 0x01, 0x01, 0x1e, 0x00, 0x1e, 0x00];
    let member = emit.define_member_ref(class, "Enter", &signature)?;
    let about = import.get_member_ref_props(member)?;
    tell(
        "member",
        member,
        &(about.name, about.signature == signature),
    );
    let spec = emit.define_method_spec(member, &[0x0a, 0x01, 0x08])?;
    tell("method-spec", spec, &());
    let list = emit.get_token_from_type_spec(&[0x1d, 0x0e])?;
    tell("type-spec", list, &import.get_type_spec_from_token(list)?);
    let library = emit.define_module_ref("libprobe")?;
    tell("module", library, &import.get_module_ref_props(library)?);
    let text = emit.define_user_string("a text, über alles")?;
    tell("text", text, &());
    say(&format_args!(
        "token applied {:?}",
        info.apply_meta_data(cx, module)?
    ));
    Ok(())
}
