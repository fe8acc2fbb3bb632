// Package signature verifies the signatures of Git commits and tags.
//
//	keys, err := signature.ParseKeys(signature.Files{AllowedSigners: text})
//	if err != nil {
//		return err
//	}
//	o, err := signature.Parse(signature.Commit, content, signature.SHA1)
//	if err != nil {
//		return err
//	}
//	verdict := keys.Verify(o, time.Now())
//	if !verdict.Verified() {
//		return errors.New(verdict.Reason)
//	}
//
// It is pure: it reads no files and no keys but those it is given, and starts no program. Hostile objects
// cost at most one pass over their content, and one public-key operation.
//
// # What is verified
//
// An object is verified if git verify-commit or git verify-tag, with the same keys, accepts it: its only
// signature is valid now (OpenPGP), or was valid at the committer's or tagger's date (SSH), and a known key
// made it.
//
//	OpenPGP   the signing key or subkey is in the key ring, may sign, and neither it nor its primary key is expired or
//	          revoked now. By is the primary user ID, Key the fingerprint of the primary key
//	SSH       namespace "git"; a line of allowed_signers has the key or, with cert-authority, the authority of the key's
//	          certificate, and its options valid-after, valid-before and namespaces permit the signature. By is the first
//	          principal of that line or, for a certificate, its first principal that the line matches
//	x509      refused
//
// As with git, a signer's name is not compared with the object's author, committer or tagger.
//
// # Stricter than git
//
//	SHA-1 and RIPEMD-160 in an OpenPGP signature   refused
//	DSA keys in an SSH signature                   refused
//	several signatures, text after a signature,
//	armor without its end                          refused
//	objects above 4 MiB, signatures above 64 KiB   refused
//	an invalid line anywhere in allowed_signers    an error of ParseKeys
//	binary KRLs as revokedKeys                     an error of ParseKeys: list public keys
package signature
