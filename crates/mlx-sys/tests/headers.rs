//! What the build makes of the C in the headers of `mlx-c`.

#[path = "../build/header.rs"]
mod header;

use header::rust;

#[test]
fn handles_enumerations_and_functions_become_rust() {
    let header = r#"
        /* A comment; with a semicolon. */
        #ifndef GUARD
        #define LONG \
          1;
        #ifdef __cplusplus
        extern "C" {
        #endif
        typedef struct mlx_vector_string_ mlx_vector_string; // announced
        typedef struct mlx_array_ { void* ctx; } mlx_array;
        typedef enum mlx_mode_ { MLX_OFF, MLX_ON, } mlx_mode;
        static mlx_array mlx_array_empty;
        typedef float _Complex mlx_complex64_t;
        int mlx_array_item_float16(float16_t* res, const mlx_array arr);
        size_t mlx_count(void);
        void mlx_set(const char** names, mlx_mode type, ...);
        #ifdef __cplusplus
        }
        #endif
        #endif
    "#;
    let expected = "\
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx_array_ {
    pub r#ctx: *mut ::std::os::raw::c_void,
}
pub type mlx_array = mlx_array_;
pub type mlx_mode_ = ::std::os::raw::c_uint;
pub use self::mlx_mode_ as mlx_mode;
pub const mlx_mode__MLX_OFF: mlx_mode_ = 0;
pub const mlx_mode__MLX_ON: mlx_mode_ = 1;
unsafe extern \"C\" {
    pub fn r#mlx_count() -> usize;
}
unsafe extern \"C\" {
    pub fn r#mlx_set(r#names: *mut *const ::std::os::raw::c_char, r#type: mlx_mode, ...);
}
";
    assert_eq!(rust(header).as_deref(), Ok(expected));
}

#[test]
fn callbacks_may_be_null() {
    let header = "mlx_array mlx_new(int (*fun)(mlx_array*, const int*, size_t _num), void (*dtor)(void*));";
    let expected = "unsafe extern \"C\" {\n    pub fn r#mlx_new(\
        r#fun: ::std::option::Option<unsafe extern \"C\" fn(_: *mut mlx_array, _: *const ::std::os::raw::c_int, \
        r#_num: usize) -> ::std::os::raw::c_int>, \
        r#dtor: ::std::option::Option<unsafe extern \"C\" fn(_: *mut ::std::os::raw::c_void)>) -> mlx_array;\n}\n";
    assert_eq!(rust(header).as_deref(), Ok(expected));
}

#[test]
fn a_character_that_mlx_rs_takes_for_signed_is_signed_on_every_machine() {
    let bindings = rust("int mlx_pad(const char* mode, const char* other);").unwrap();
    assert!(bindings.contains("r#mode: *const i8, r#other: *const ::std::os::raw::c_char"), "{bindings}");
}

#[test]
fn what_is_not_understood_is_named() {
    for declaration in [
        "int mlx_f(long double x)",
        "typedef union mlx_u_ { int a; } mlx_u",
        "typedef enum mlx_e_ { MLX_A = 4 } mlx_e",
        "typedef struct mlx_s_ { int a[4]; } mlx_s",
        "unsigned mlx_g(int x)",
        "int mlx_variable",
    ] {
        assert_eq!(rust(&format!("size_t mlx_fine(void);\n{declaration};")), Err(declaration.to_owned()));
    }
}
