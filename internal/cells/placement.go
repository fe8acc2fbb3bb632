package cells

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Share is the weight of a cell in a [Placement].
type Share struct {
	Name   string
	Weight int // 0 to MaxWeight; a cell with 0 is given nothing
}

// Placement divides keys among cells by weighted rendezvous hashing (Thaler and Ravishankar 1998; weights by
// Schindelhauer and Schomaker 2005): a key has an exponentially distributed value for each cell, and belongs
// to the cell with the smallest quotient of value and weight. It computes with integers only, so that all
// machines agree. Safe for concurrent use.
type Placement struct {
	names   []string
	seeds   []uint64
	weights []uint64
}

// NewPlacement returns the placement by shares, in any order. Names must differ.
func NewPlacement(shares []Share) *Placement {
	sorted := slices.Clone(shares)
	slices.SortFunc(sorted, func(a, b Share) int { return cmp.Compare(a.Name, b.Name) })
	p := &Placement{}
	for _, s := range sorted {
		if s.Weight > 0 {
			p.names = append(p.names, s.Name)
			p.seeds = append(p.seeds, hash(s.Name))
			p.weights = append(p.weights, uint64(s.Weight))
		}
	}
	return p
}

// Of returns the name of the cell of a key, or "" if no cell has a weight.
func (p *Placement) Of(key string) string {
	if len(p.names) == 0 {
		return ""
	}
	h := hash(key)
	best, value := 0, exponential(mix(h^p.seeds[0]))
	for i := 1; i < len(p.names); i++ {
		u, limit := mix(h^p.seeds[i]), value*p.weights[i]
		if (^u>>fraction)*p.weights[best] >= limit { // -log2(x) >= 1-x: spares most logarithms
			continue
		}
		// v/w < value/weight; both products are below 2^59. The first of equal ones wins.
		if v := exponential(u); v*p.weights[best] < limit {
			best, value = i, v
		}
	}
	return p.names[best]
}

// hash is FNV-1a, mixed because its upper bits depend little on the last bytes.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

const (
	fraction = 32                   // bits after the binary point of a logarithm
	steps    = 11                   // bits of the table's index
	below    = 63 - steps           // bits of a normalized number that are interpolated
	unit     = uint64(1) << (below) // of the interpolated part
)

// logarithms has log2(1 + i/2^steps) with 32 bits after the binary point. A test pins its sum, as placement
// depends on every bit.
var logarithms = func() (table [1<<steps + 1]uint64) {
	for i := range table {
		table[i] = uint64(math.Round(math.Log2(1+float64(i)/(1<<steps)) * (1 << fraction)))
	}
	return table
}()

// exponential returns -log2(h / 2^64) with 32 bits after the binary point, at most 2^38, for a uniformly
// distributed h. Its relative error is below 1e-4 for the values that decide among up to 1,024 cells.
func exponential(h uint64) uint64 {
	h |= 1
	zeros := bits.LeadingZeros64(h)
	normal := h << zeros << 1 >> 1 // without the leading one: 63 bits
	i, rest := normal>>below, normal&(unit-1)
	low, high := logarithms[i], logarithms[i+1]
	log := low + (high-low)*(rest>>(below-24))>>24 // the step is below 2^22
	return uint64(zeros+1)<<fraction - log
}
