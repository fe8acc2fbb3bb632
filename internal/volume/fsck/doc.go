// Package fsck reads stores and trees back and checks them: each object hashes to its name,
// each ref's history is complete, each tree has its commit's files and no others.
//
// A [Checker] takes one store at a time, with the trees that read from it, and gathers a [Report]. It changes nothing;
// package volume decides what to check, holds the locks, and marks what is damaged. It hashes all that it reads, and decodes
// indexes by itself, so that it does not depend on what builds the trees.
//
// Damage is a [Problem] in the report. An error means that the check could not be completed.
package fsck
