package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. Its text is a whole number, or a number with a binary unit: 1048576, 512MiB, 1.5GiB.
type Size int64

// units are the units of sizes, each 1024 times the previous one.
var units = []string{"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

var errSize = errors.New("want a whole number of bytes, or a size with its unit, such as 512MiB")

// ParseSize parses a size. Units are KiB to EiB, or Ki to Ei as in Kubernetes, in any case; a space may precede them.
func ParseSize(text string) (Size, error) {
	text = strings.TrimSpace(text)
	number := strings.TrimRight(text, "KMGTPEIBkmgtpeib ")
	unit := strings.ToLower(strings.TrimSpace(text[len(number):]))
	for i, name := range units {
		name = strings.ToLower(name)
		if unit != name && (i == 0 || unit != strings.TrimSuffix(name, "b")) {
			continue
		}
		factor := int64(1) << (10 * i)
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			if n > math.MaxInt64/factor || n < math.MinInt64/factor {
				return 0, errSize
			}
			return Size(n * factor), nil
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || i == 0 || strings.Trim(number, "0123456789.") != "" || n*float64(factor) >= math.MaxInt64 {
			return 0, errSize
		}
		return Size(math.Round(n * float64(factor))), nil
	}
	return 0, errSize
}

// String returns the size exactly, in the largest unit of which it is a multiple.
func (s Size) String() string {
	n, i := int64(s), 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatInt(n, 10) + units[i]
}

// Set implements [pflag.Value].
func (s *Size) Set(text string) (err error) {
	*s, err = ParseSize(text)
	return err
}

// Type implements [pflag.Value].
func (s *Size) Type() string { return "size" }
