/** Code to copy. */
package dev.ringfence.examples;
