// Package archive writes the files of a published tree as an archive.
//
//	contents := archive.New(t, archive.Options{Paths: []string{"docs"}}) // t is pinned
//	summary, err := contents.Summary(ctx)                               // reads the list of files only
//	w.Header().Set("ETag", summary.ETag(archive.TarZst))
//	err = contents.Write(ctx, w, archive.TarZst)
//
// An archive is a pure function of the selected files, their modes, the format and [Version]: any process on any
// machine produces the same bytes at any time, also for another commit with the same files. Entries are sorted by path
// as in Git's index, have the modes 0644 and 0755, no owner, and the time 2000-01-01. There are no entries for folders,
// except for submodules. Files are as in the tree: those of Git LFS have their content if a watch asks for it.
// [Summary.Digest] depends on the same, without reading a file.
//
// Nothing is written to disk, and Write uses one goroutine. The list of files and the files are read as
// streams, and the encoder uses a few MB, so memory depends neither on the size nor on the number of files.
//
// # Failures
//
//	the list is missing or damaged, or a file is not as built   ErrAltered; repos verify --repair has the tree replaced
//	the reader is gone                                          the error of the writer
//
// A Write that fails leaves an archive without its end, which no decoder accepts.
package archive
