"""Dual numbers in CUDA C++: the number type of derivatives.

A dual number is a float64 with its derivatives by a few parameters (Wengert 1964): an operation on
it applies the rule of differentiation beside itself, so derivatives are exact, of the very
algorithm that computes the values. Formulas that are templates over a number type take `Dual` as
they take `double`.
"""

#: CUDA C++ of the type Dual, which carries TANGENTS derivatives, a constant that the text before it
#: defines as it does the functions of `cuda_math`.
DUAL = """
// --- dual numbers --------------------------------------------------------------------------------

#define EACH_TANGENT _Pragma("unroll") for (int t = 0; t < TANGENTS; ++t)
#define INLINE __device__ __forceinline__

// Derivatives of which there are none take no room.
template <int N> struct Derivatives { double d[N]; };
template <> struct Derivatives<0> { static constexpr double *d = nullptr; };

// A value and its derivatives.
struct Dual : Derivatives<TANGENTS> {
    double v;

    Dual() = default;
    INLINE Dual(const double value) : v(value) { EACH_TANGENT d[t] = 0.0; }
};

INLINE Dual operator-(const Dual &a) {
    Dual y;
    y.v = -a.v;
    EACH_TANGENT y.d[t] = -a.d[t];
    return y;
}

INLINE Dual operator+(const Dual &a, const Dual &b) {
    Dual y;
    y.v = a.v + b.v;
    EACH_TANGENT y.d[t] = a.d[t] + b.d[t];
    return y;
}

INLINE Dual operator+(Dual a, const double b) { a.v += b; return a; }
INLINE Dual operator+(const double a, const Dual &b) { return b + a; }

INLINE Dual operator-(const Dual &a, const Dual &b) {
    Dual y;
    y.v = a.v - b.v;
    EACH_TANGENT y.d[t] = a.d[t] - b.d[t];
    return y;
}

INLINE Dual operator-(Dual a, const double b) { a.v -= b; return a; }
INLINE Dual operator-(const double a, const Dual &b) { return -b + a; }

INLINE Dual operator*(const Dual &a, const Dual &b) {
    Dual y;
    y.v = a.v*b.v;
    EACH_TANGENT y.d[t] = a.v*b.d[t] + a.d[t]*b.v;
    return y;
}

INLINE Dual operator*(const Dual &a, const double b) {
    Dual y;
    y.v = a.v*b;
    EACH_TANGENT y.d[t] = a.d[t]*b;
    return y;
}

INLINE Dual operator*(const double a, const Dual &b) { return b*a; }

INLINE Dual operator/(const Dual &a, const Dual &b) {
    const double per = 1.0/b.v;
    Dual y;
    y.v = a.v/b.v;
    EACH_TANGENT y.d[t] = (a.d[t] - y.v*b.d[t])*per;
    return y;
}

INLINE Dual operator/(const Dual &a, const double b) {
    Dual y;
    y.v = a.v/b;
    EACH_TANGENT y.d[t] = a.d[t]/b;
    return y;
}

INLINE Dual operator/(const double a, const Dual &b) { return Dual(a)/b; }

INLINE Dual &operator+=(Dual &a, const Dual &b) { return a = a + b; }
INLINE Dual &operator-=(Dual &a, const Dual &b) { return a = a - b; }
INLINE Dual &operator*=(Dual &a, const Dual &b) { return a = a*b; }

INLINE double valueOf(const Dual &a) { return a.v; }

#define COMPARISON(sign)                                                                \\
    INLINE bool operator sign(const Dual &a, const Dual &b) { return a.v sign b.v; }    \\
    INLINE bool operator sign(const Dual &a, const double b) { return a.v sign b; }     \\
    INLINE bool operator sign(const double a, const Dual &b) { return a sign b.v; }
COMPARISON(<)
COMPARISON(<=)
COMPARISON(>)
COMPARISON(>=)
COMPARISON(==)
COMPARISON(!=)

// y = f(x) with its slope there. y depends on nothing that x does not depend on, however steep f
// is.
INLINE Dual composed(const Dual &x, const double value, const double slope) {
    Dual y;
    y.v = value;
    EACH_TANGENT y.d[t] = x.d[t] == 0.0 ? 0.0 : slope*x.d[t];
    return y;
}

// Slopes end here, so that a saturated 1/(1 + exp(x)) has the slope 0 and not infinity over itself.
constexpr double STEEPEST = 1e300;

INLINE Dual exponential(const Dual &x) {
    const double y = exponential(x.v);
    return composed(x, y, y < STEEPEST ? y : STEEPEST);
}

// 1 - exp(-x) for x >= 0
INLINE Dual decay(const Dual &x) { return composed(x, decay(x.v), exponential(-x.v)); }

// The slope of exprel: a series where the closed forms would lose digits.
INLINE double exprelSlope(const double x) {
    if (fabs(x) < 1.0) {
        double sum = 0.0;
#pragma unroll
        for (int k = 18; k >= 0; --k) sum = sum*x*(1.0/(k + 2)) + (k + 1.0)/(k + 2.0);
        return sum;
    }
    const double slope = (exponential(x)*(1.0 - 1.0/x) + 1.0/x)/x;
    return slope < STEEPEST ? slope : STEEPEST;
}

INLINE Dual exprel(const Dual &x) { return composed(x, exprel(x.v), exprelSlope(x.v)); }
INLINE Dual log(const Dual &x) { return composed(x, log(x.v), 1.0/x.v); }
INLINE Dual fabs(const Dual &x) {
    return composed(x, fabs(x.v), x.v > 0.0 ? 1.0 : x.v < 0.0 ? -1.0 : 0.0);
}

INLINE Dual sqrt(const Dual &x) {
    const double y = sqrt(x.v);
    return composed(x, y, 0.5/y);
}

INLINE Dual tanh(const Dual &x) {
    const double y = tanh(x.v), e = exponential(-2.0*fabs(x.v)), s = 1.0/(1.0 + e);
    return composed(x, y, 4.0*e*s*s);
}

INLINE Dual pow(const Dual &a, const double b) {
    return composed(a, pow(a.v, b), b == 0.0 ? 0.0 : b*pow(a.v, b - 1.0));
}
INLINE Dual pow(const double a, const Dual &b) {
    const double y = pow(a, b.v);
    return composed(b, y, a == 0.0 ? 0.0 : y*log(a));
}
INLINE Dual pow(const Dual &a, const Dual &b) {
    Dual y = pow(a, b.v);
    const Dual by_exponent = pow(a.v, b);
    EACH_TANGENT y.d[t] += by_exponent.d[t];
    return y;
}

INLINE Dual reciprocal(const Dual &x) {
    Dual y;
    y.v = reciprocal(x.v);
    EACH_TANGENT y.d[t] = -(y.v*(y.v*x.d[t]));
    return y;
}

// A rate within its bounds: constant outside; a slope that is no number (0 times infinity where a
// term is saturated, the root of nothing) counts as none.
INLINE Dual between(const Dual &x, const double lower, const double upper) {
    Dual y;
    const bool inside = x.v > lower && x.v < upper;
    y.v = between(x.v, lower, upper);
    EACH_TANGENT y.d[t] = inside && fabs(x.d[t]) < 1e306 ? x.d[t] : 0.0;
    return y;
}

INLINE Dual least(const Dual &a, const Dual &b) { return b.v < a.v ? b : a; }
INLINE Dual most(const Dual &a, const Dual &b) { return b.v > a.v ? b : a; }

// A value below 0 comes from rounding, and becomes 0; derivatives stay.
INLINE Dual notNegative(Dual x) {
    x.v = notNegative(x.v);
    return x;
}"""
