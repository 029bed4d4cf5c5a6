//go:build tools

// Package tools names the programs that hack/cluster builds from this module.
package tools

import _ "github.com/coredns/coredns"
