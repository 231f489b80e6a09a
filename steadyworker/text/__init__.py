"""Text from outside: conversion to valid Unicode, and removal of secrets."""
