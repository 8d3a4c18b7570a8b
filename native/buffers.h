#pragma once
// Arrays from Python, checked: every error is a ValueError that begins with the argument's name.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace transom {

namespace nb = nanobind;

[[noreturn]] inline void complain(const std::string& name, const std::string& what) {
    throw nb::value_error((name + ": " + what).c_str());
}

// Format codes of the buffer protocol for an element type, and numpy's name of it.
template <typename T>
struct Format;
template <>
struct Format<float> {
    static constexpr const char *codes = "f", *name = "float32";
};
template <>
struct Format<int32_t> {
    static constexpr const char *codes = "i", *name = "int32";
};
template <>
struct Format<uint64_t> {
    static constexpr const char *codes = "LQ", *name = "uint64";
};
template <>
struct Format<uint8_t> {
    static constexpr const char *codes = "B", *name = "uint8";
};
template <>
struct Format<int16_t> {
    static constexpr const char *codes = "h", *name = "int16";
};

// A borrowed buffer. Keeps the Python object alive; must be destroyed with the GIL held.
class Buffer {
public:
    Buffer(nb::handle object, const char* name, int dimensions, bool writable) : name_(name) {
        const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            PyErr_Clear();
            complain(name, writable ? "must be a writable array" : "must be an array");
        }
        if (view_.ndim != dimensions) {
            const int given = view_.ndim;
            PyBuffer_Release(&view_);
            complain(name,
                     "must have " + std::to_string(dimensions) + " dimensions, has " + std::to_string(given));
        }
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    int64_t dim(int axis) const { return view_.shape[axis]; }
    int64_t stride(int axis) const { return view_.strides[axis]; }
    int64_t item() const { return view_.itemsize; }
    void* data() const { return view_.buf; }
    const char* name() const { return name_; }
    char format() const {
        return view_.format && view_.format[0] && !view_.format[1] ? view_.format[0] : '?';
    }

    // Whether axes [first, ndim) are C-contiguous.
    bool dense(int first) const {
        int64_t step = view_.itemsize;
        for (int axis = view_.ndim - 1; axis >= first; step *= view_.shape[axis], --axis) {
            if (view_.shape[axis] != 1 && view_.strides[axis] != step && view_.len != 0) return false;
        }
        return true;
    }

    void expect(int axis, int64_t size) const {
        if (dim(axis) == size) return;
        complain(name_, "axis " + std::to_string(axis) + " must be " + std::to_string(size) + ", is " +
                            std::to_string(dim(axis)));
    }

private:
    Py_buffer view_;
    const char* name_;
};

// A C-contiguous array of T.
template <typename T>
class Array : public Buffer {
public:
    Array(nb::handle object, const char* name, int dimensions, bool writable = false)
        : Buffer(object, name, dimensions, writable) {
        const char f = format();
        bool known = false;
        for (const char* c = Format<T>::codes; *c; ++c) known = known || *c == f;
        if (!known || item() != sizeof(T)) complain(name, std::string("must be ") + Format<T>::name);
        if (!dense(0)) complain(name, "must be C-contiguous");
    }
    T* at() const { return static_cast<T*>(data()); }
};

}  // namespace transom
