const _: () = {
    impl ::tacit::__private::serde::Serialize for Weight {
        fn serialize<__TacitSerializer: ::tacit::__private::serde::Serializer>(
            &self,
            serializer: __TacitSerializer,
        ) -> ::core::result::Result<__TacitSerializer::Ok, __TacitSerializer::Error> {
            use ::tacit::__private::serde::ser::SerializeStruct as _;
            let mut fields = serializer.serialize_struct("Weight", 2usize)?;
            <Array as ::tacit::__private::StoredChild>::write(
                &self.packed,
                "packed",
                &mut fields,
            )?;
            <Aval as ::tacit::__private::Aux>::write(&self.aval, "aval", &mut fields)?;
            fields.end()
        }
    }
    #[derive(::tacit::__private::serde::Deserialize)]
    #[serde(
        crate = "::tacit::__private::serde",
        remote = "Weight",
        deny_unknown_fields,
        bound = ""
    )]
    struct __TacitStoredWeight {
        #[serde(deserialize_with = "::tacit::__private::StoredChild::restore")]
        packed: Array,
        #[serde(deserialize_with = "::tacit::__private::Aux::restore")]
        aval: Aval,
    }
    impl<'de> ::tacit::__private::serde::Deserialize<'de> for Weight {
        fn deserialize<
            __TacitDeserializer: ::tacit::__private::serde::Deserializer<'de>,
        >(
            deserializer: __TacitDeserializer,
        ) -> ::core::result::Result<Self, __TacitDeserializer::Error> {
            let array = __TacitStoredWeight::deserialize(deserializer)?;
            ::tacit::Materialize::check(&array)
                .map_err(
                    <__TacitDeserializer::Error as ::tacit::__private::serde::de::Error>::custom,
                )?;
            ::core::result::Result::Ok(array)
        }
    }
    impl ::tacit::ImplicitArray for Weight {
        #[doc(hidden)]
        fn typetag_name(&self) -> &'static str {
            "test.Weight"
        }
        #[doc(hidden)]
        fn typetag_deserialize(&self) {}
        fn aval(&self) -> ::tacit::Result<::tacit::Aval> {
            ::tacit::Result::Ok(
                <Aval as ::tacit::__private::DeclaredAval>::declared(&self.aval),
            )
        }
        fn build(
            &self,
            _: ::tacit::__private::Permit,
        ) -> ::tacit::Result<::tacit::Value> {
            <Self as ::tacit::Materialize>::materialize(self)
        }
        fn used_as(&self) -> ::tacit::Result<::core::option::Option<::tacit::Value>> {
            <Self as ::tacit::Materialize>::used_as(self)
        }
        fn visit_children<'a>(
            &'a self,
            visit: &mut dyn ::core::ops::FnMut(::tacit::ChildName, ::tacit::ChildRef<'a>),
        ) {
            <Array as ::tacit::ChildField>::visit(
                &self.packed,
                ::tacit::ChildName::field("packed"),
                visit,
            );
        }
        fn with_children(
            &self,
            children: ::std::vec::Vec<::tacit::Value>,
        ) -> ::tacit::Result<::std::boxed::Box<dyn ::tacit::ImplicitArray>> {
            ::tacit::__private::rebuilt(
                children,
                |children| {
                    ::tacit::Result::Ok(Self {
                        packed: <Array as ::tacit::ChildField>::replaced(
                            &self.packed,
                            "packed",
                            children,
                        )?,
                        aval: <Aval as ::tacit::__private::Aux>::duplicate(&self.aval),
                    })
                },
            )
        }
        fn aux_eq(&self, other: &dyn ::tacit::ImplicitArray) -> bool {
            other
                .as_any()
                .downcast_ref::<Self>()
                .is_some_and(|other| {
                    true
                        && <Aval as ::tacit::__private::Aux>::equals(
                            &self.aval,
                            &other.aval,
                        )
                })
        }
        fn aux_hash(&self, state: &mut dyn ::core::hash::Hasher) {
            ::tacit::__private::hash_type::<Self>(state);
            <Aval as ::tacit::__private::Aux>::hash_into(&self.aval, state);
        }
        fn aux(&self) -> ::std::vec::Vec<(&'static str, ::std::string::String)> {
            ::std::vec![("aval", ::std::format!("{:?}", self.aval))]
        }
        fn array_type(&self) -> &'static ::tacit::__private::ArrayType {
            <Self as ::tacit::__private::StaticType>::TYPE
        }
        fn as_any(&self) -> &dyn ::core::any::Any {
            self
        }
    }
    impl ::tacit::__private::StaticType for Weight {
        const TYPE: &'static ::tacit::__private::ArrayType = &::tacit::__private::ArrayType {
            id: ::core::any::TypeId::of::<Self>(),
            saved_as: "test.Weight",
            name: ::core::any::type_name::<Self>,
            families: &[],
            default: {
                const DEFAULT: ::tacit::DefaultHandler = crate::take;
                ::core::option::Option::Some(DEFAULT)
            },
            commutes: false,
            policy: ::core::option::Option::None,
            deferred: <Self as ::tacit::Materialize>::DEFERRED,
        };
    }
    ::tacit::__private::register_array!(Weight);
    impl ::tacit::tree::Arguments for Weight {
        type Arrays = ::tacit::__private::Array;
        fn flatten<'a>(
            &'a self,
            visitor: &mut dyn ::tacit::tree::Visitor<'a>,
        ) -> ::tacit::Result<()> {
            visitor.implicit(self);
            ::tacit::Result::Ok(())
        }
    }
};
