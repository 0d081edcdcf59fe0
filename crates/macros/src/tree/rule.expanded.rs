#[automatically_derived]
impl ::tacit::Tree for Rule {
    type With<Other: ::tacit::tree::Leaf> = Other::Fixed<Self>;
    fn unflatten(reader: &mut ::tacit::tree::Reader<'_>) -> ::tacit::Result<Self> {
        match reader
            .enter_any(
                &[
                    ::core::concat!(::core::module_path!(), "::Rule::Frozen"),
                    ::core::concat!(::core::module_path!(), "::Rule::Scaled"),
                    ::core::concat!(::core::module_path!(), "::Rule::Moving"),
                ],
            )?
        {
            (0, entered) => {
                entered.of_len(0usize)?;
                ::tacit::Result::Ok(Self::Frozen {})
            }
            (1, entered) => {
                let entered = entered.of_len(1usize)?;
                ::tacit::Result::Ok(Self::Scaled {
                    0: <Array as ::tacit::Tree>::unflatten(reader)?,
                    1: entered.static_field("1")?,
                })
            }
            (_, entered) => {
                entered.of_len(1usize)?;
                ::tacit::Result::Ok(Self::Moving {
                    velocity: <Array as ::tacit::Tree>::unflatten(reader)?,
                })
            }
        }
    }
    fn assign(&mut self, reader: &mut ::tacit::tree::Reader<'_>) -> ::tacit::Result<()> {
        match self {
            Self::Frozen {} if reader
                .is_at(::core::concat!(::core::module_path!(), "::Rule::Frozen")) => {
                reader
                    .enter(::core::concat!(::core::module_path!(), "::Rule::Frozen"))?
                    .of_len(0usize)?;
            }
            Self::Scaled {
                0: its_0,
                1: its_1,
            } if reader
                .is_at(::core::concat!(::core::module_path!(), "::Rule::Scaled")) => {
                let entered = reader
                    .enter(::core::concat!(::core::module_path!(), "::Rule::Scaled"))?
                    .of_len(1usize)?;
                <Array as ::tacit::Tree>::assign(its_0, reader)?;
                *its_1 = entered.static_field("1")?;
            }
            Self::Moving {
                velocity: its_velocity,
            } if reader
                .is_at(::core::concat!(::core::module_path!(), "::Rule::Moving")) => {
                reader
                    .enter(::core::concat!(::core::module_path!(), "::Rule::Moving"))?
                    .of_len(1usize)?;
                <Array as ::tacit::Tree>::assign(its_velocity, reader)?;
            }
            _ => *self = Self::unflatten(reader)?,
        }
        ::tacit::Result::Ok(())
    }
}
#[automatically_derived]
impl ::tacit::tree::Arguments for Rule {
    type Arrays = Self;
    fn flatten<'a>(
        &'a self,
        visitor: &mut dyn ::tacit::tree::Visitor<'a>,
    ) -> ::tacit::Result<()> {
        match self {
            Self::Frozen {} => {
                visitor
                    .node(
                        &::tacit::tree::Node::new(
                            ::core::concat!(::core::module_path!(), "::Rule::Frozen"),
                            ::tacit::tree::Labels::Positions(0usize),
                        ),
                    );
            }
            Self::Scaled { 0: its_0, 1: its_1 } => {
                visitor
                    .node(
                        &::tacit::tree::Node::new(
                                ::core::concat!(::core::module_path!(), "::Rule::Scaled"),
                                ::tacit::tree::Labels::Positions(1usize),
                            )
                            .with_statics(&[("1", its_1)]),
                    );
                <Array as ::tacit::Tree>::flatten_tree(its_0, visitor)?;
            }
            Self::Moving { velocity: its_velocity } => {
                visitor
                    .node(
                        &::tacit::tree::Node::new(
                            ::core::concat!(::core::module_path!(), "::Rule::Moving"),
                            ::tacit::tree::Labels::Fields(&["velocity"]),
                        ),
                    );
                <Array as ::tacit::Tree>::flatten_tree(its_velocity, visitor)?;
            }
        }
        ::tacit::Result::Ok(())
    }
}
