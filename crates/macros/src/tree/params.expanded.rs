#[automatically_derived]
impl<L: ::tacit::tree::Leaf> ::tacit::Tree for Params<L> {
    type With<OtherL: ::tacit::tree::Leaf> = Params<OtherL>;
    fn unflatten(reader: &mut ::tacit::tree::Reader<'_>) -> ::tacit::Result<Self> {
        let entered = reader
            .enter(::core::concat!(::core::module_path!(), "::Params"))?
            .of_len(2usize)?;
        ::tacit::Result::Ok(Self {
            weight: <L as ::tacit::Tree>::unflatten(reader)?,
            layers: <Vec<Layer<L>> as ::tacit::Tree>::unflatten(reader)?,
            heads: entered.static_field("heads")?,
        })
    }
    fn assign(&mut self, reader: &mut ::tacit::tree::Reader<'_>) -> ::tacit::Result<()> {
        let entered = reader
            .enter(::core::concat!(::core::module_path!(), "::Params"))?
            .of_len(2usize)?;
        <L as ::tacit::Tree>::assign(&mut self.weight, reader)?;
        <Vec<Layer<L>> as ::tacit::Tree>::assign(&mut self.layers, reader)?;
        self.heads = entered.static_field("heads")?;
        ::tacit::Result::Ok(())
    }
}
#[automatically_derived]
impl<
    L: ::tacit::tree::Arguments<Arrays = ::tacit::__private::Array>,
> ::tacit::tree::Arguments for Params<L> {
    type Arrays = Params<::tacit::__private::Array>;
    fn flatten<'a>(
        &'a self,
        visitor: &mut dyn ::tacit::tree::Visitor<'a>,
    ) -> ::tacit::Result<()> {
        visitor
            .node(
                &::tacit::tree::Node::new(
                        ::core::concat!(::core::module_path!(), "::Params"),
                        ::tacit::tree::Labels::Fields(&["weight", "layers"]),
                    )
                    .with_statics(&[("heads", &self.heads)]),
            );
        <L as ::tacit::tree::Arguments>::flatten(&self.weight, visitor)?;
        <Vec<Layer<L>> as ::tacit::tree::Arguments>::flatten(&self.layers, visitor)?;
        ::tacit::Result::Ok(())
    }
}
