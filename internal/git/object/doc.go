// Package object receives packs and reads Git objects.
//
// A fetch writes its pack to a [Quarantine], which is private to it. [Quarantine.Index] receives a complete pack,
// [Quarantine.Unpack] a thin pack, whose bases are in a store; both check every object and enforce [Limits].
// [Quarantine.Release] then moves the objects into the store. [Store] reads the objects of bare repositories.
//
// # Memory
//
// The memory needed to receive a pack depends on the number of objects, not on their sizes. Contents above 1 MiB pass
// through temporary files in the quarantine. First fetches also keep blobs for their checkouts, up to 64
// MiB in the whole process.
//
// # Failures
//
//	damaged or missing pack or object    retryable, ClassCorrupt
//	file, number of objects or their     permanent, ClassQuota; refused before inflating
//	total size above Limits
//	commit, tag or tree above 64 MiB     permanent, ClassQuota
//	link invalid in Git                  permanent, ClassHostile
//	disk error                           retryable, ClassVolume
//
// go-git may panic on damaged files. The methods of Quarantine turn a panic into an error; callers of a Store defer
// [RecoverCorrupt].
package object
